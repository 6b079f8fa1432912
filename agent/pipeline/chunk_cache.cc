#include "agent/pipeline/chunk_cache.h"

#include <algorithm>
#include <cstring>

#include "storage/format/checksum.h"

namespace holdfast::agent {

uint64_t ChunkCache::Claim(Rank rank, uint64_t first, uint64_t last) {
  uint64_t end = first;
  while (end < last && chunks_.try_emplace({rank.value, end}).second) ++end;
  return end - first;
}

void ChunkCache::Keep(Key key, Bytes bytes) {
  chunks_[key] = std::move(bytes);
  order_.push_back(key);
  if (order_.size() <= chunks_max_) return;
  chunks_.erase(order_.front());
  order_.pop_front();
}

Status ChunkCache::Read(Rank rank, uint64_t first, std::span<std::byte> into, const Fetch& fetch) {
  const uint64_t last = first + ChunkCount(into.size());
  for (uint64_t chunk = first; chunk < last;) {
    const auto rest = into.subspan((chunk - first) * kChunkBytes);
    Bytes known;
    uint64_t claimed = 0;
    {
      MutexLock lock(mutex_);
      claimed = Claim(rank, chunk, last);
      if (claimed == 0) {
        known = chunks_.at({rank.value, chunk});
        if (known == nullptr) {
          changed_.Wait(mutex_);
          continue;
        }
      }
    }
    if (known != nullptr) {
      const size_t bytes = std::min<size_t>(rest.size(), kChunkBytes);
      if (known->size() != bytes) {
        return InvalidArgumentError("the bytes do not end where a chunk ends");
      }
      std::memcpy(rest.data(), known->data(), bytes);
      ++chunk;
      continue;
    }
    const auto mine = rest.first(std::min<size_t>(rest.size(), claimed * kChunkBytes));
    const Status fetched = fetch(chunk, mine);
    std::vector<Bytes> read;
    for (uint64_t i = 0; fetched.ok() && i < claimed; ++i) {
      const auto bytes = mine.subspan(i * kChunkBytes)
                             .first(std::min<size_t>(mine.size() - i * kChunkBytes, kChunkBytes));
      read.push_back(std::make_shared<const std::vector<std::byte>>(bytes.begin(), bytes.end()));
    }
    MutexLock lock(mutex_);
    for (uint64_t i = 0; i < claimed; ++i) {
      const Key key{rank.value, chunk + i};
      if (fetched.ok()) {
        Keep(key, std::move(read[i]));
      } else {
        chunks_.erase(key);
      }
    }
    changed_.NotifyAll();
    if (!fetched.ok()) return fetched;
    chunk += claimed;
  }
  return Status::Ok();
}

}  // namespace holdfast::agent
