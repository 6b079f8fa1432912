#include "storage/chunks/disk_chunks.h"

#include <cstring>
#include <utility>

#include "base/crash_point.h"
#include "storage/io/queue_rules.h"

namespace holdfast {
namespace {
constexpr size_t kIdleMax = 8;
// A device that fails this often is not asked for the rest of the chunks.
constexpr uint32_t kDeviceErrorsMax = 64;

Status OtherImage() {
  return NotFoundError("the replica there is another image than the wanted one");
}
}  // namespace

Result<ShardSeal> DiskChunks::ReadSeal() { return volume_.ReadSeal(key_); }

Result<std::unique_ptr<ShardChunks>> DiskChunks::Take(const ShardSeal& seal) {
  {
    MutexLock lock(mutex_);
    if (!idle_.empty()) {
      auto files = std::move(idle_.back());
      idle_.pop_back();
      if (SameImage(files->seal(), seal)) return files;
      idle_.clear();  // the shard was replaced
    }
  }
  HOLDFAST_ASSIGN_OR_RETURN(auto files, volume_.OpenChunks(key_));
  if (!SameImage(files->seal(), seal)) return Fail(OtherImage());
  return files;
}

void DiskChunks::Return(std::unique_ptr<ShardChunks> files) {
  MutexLock lock(mutex_);
  if (idle_.size() < kIdleMax) idle_.push_back(std::move(files));
}

Status DiskChunks::Read(const ShardSeal& seal, std::span<WantedChunk> chunks) {
  HOLDFAST_RETURN_IF_ERROR(CheckWanted(key_, seal, chunks));
  HOLDFAST_ASSIGN_OR_RETURN(const bool whole, ReadWhole(seal, chunks));
  return whole ? Status::Ok() : ReadEach(seal, chunks);
}

Result<bool> DiskChunks::ReadWhole(const ShardSeal& seal, std::span<WantedChunk> chunks) {
  if (chunks.size() < 2 || chunks.size() != seal.chunk_crcs.size()) return false;
  std::byte* const begin = chunks.front().into.data();
  if (reinterpret_cast<uintptr_t>(begin) % kBlockBytes != 0) return false;
  // The volume reads complete blocks, and so writes after the last chunk.
  const uint64_t block_end = RoundUp(seal.image_bytes, kBlockBytes);
  if (seal.image_bytes + chunks.back().slack < block_end) return false;
  for (uint64_t i = 0; i < chunks.size(); ++i) {
    if (chunks[i].done || chunks[i].into.data() != begin + i * kChunkBytes) return false;
  }
  const auto read = volume_.ReadShard(key_, {begin, block_end},
                                      [](uint64_t) { HOLDFAST_CRASH_POINT("agent.mid_restore"); });
  // Each chunk is then read again, so that the good ones are used.
  if (!read && read.error().code() == ErrorCode::kDataLoss) return false;
  HOLDFAST_RETURN_IF_ERROR(read ? Status::Ok() : read.error());
  if (!SameImage(*read, seal)) return Fail(OtherImage());
  for (WantedChunk& chunk : chunks) chunk.done = true;
  return true;
}

Status DiskChunks::ReadEach(const ShardSeal& seal, std::span<WantedChunk> chunks) {
  std::unique_ptr<ShardChunks> files;
  Status failed;
  uint32_t device_errors = 0;
  for (WantedChunk& chunk : chunks) {
    if (chunk.done) continue;
    if (files == nullptr) {
      HOLDFAST_ASSIGN_OR_RETURN(files, Take(seal));
    }
    const auto bytes = files->Read(chunk.index);
    if (bytes && bytes->size() == chunk.into.size()) {
      std::memcpy(chunk.into.data(), bytes->data(), bytes->size());
      chunk.done = true;
      HOLDFAST_CRASH_POINT("agent.mid_restore");
      continue;
    }
    const Status status =
        bytes ? InternalError("a chunk has another length than its buffer") : bytes.error();
    if (status.code() == ErrorCode::kDataLoss) {
      if (failed.ok()) failed = status;
      continue;
    }
    files.reset();  // after a device error the open files can no longer be used
    if (status.code() != ErrorCode::kIoError) return status;
    failed = status;
    if (++device_errors >= kDeviceErrorsMax) return failed;
  }
  if (files != nullptr) Return(std::move(files));
  return failed;
}

}  // namespace holdfast
