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

Status ChunkCache::Copy(const Bytes& chunk, std::span<std::byte> into) {
  if (chunk->size() != std::min<size_t>(into.size(), kChunkBytes)) {
    return InvalidArgumentError("the bytes do not end where a chunk ends");
  }
  std::memcpy(into.data(), chunk->data(), chunk->size());
  return Status::Ok();
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
      HOLDFAST_RETURN_IF_ERROR(Copy(known, rest));
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

Status ChunkCache::ReadKept(Rank rank, uint64_t first, std::span<std::byte> into,
                            const Fetch& fetch) {
  const uint64_t last = first + ChunkCount(into.size());
  std::vector<Bytes> kept;
  {
    MutexLock lock(mutex_);
    for (uint64_t chunk = first; chunk < last; ++chunk) {
      const auto found = chunks_.find({rank.value, chunk});
      kept.push_back(found == chunks_.end() ? nullptr : found->second);
    }
  }
  for (size_t i = 0; i < kept.size();) {
    const auto rest = into.subspan(i * kChunkBytes);
    if (kept[i] != nullptr) {
      HOLDFAST_RETURN_IF_ERROR(Copy(kept[i++], rest));
      continue;
    }
    const uint64_t begin = i;
    while (i < kept.size() && kept[i] == nullptr) ++i;
    const auto missing = rest.first(std::min<size_t>(rest.size(), (i - begin) * kChunkBytes));
    HOLDFAST_RETURN_IF_ERROR(fetch(first + begin, missing));
  }
  return Status::Ok();
}

}  // namespace holdfast::agent
