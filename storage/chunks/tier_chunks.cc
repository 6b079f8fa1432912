#include "storage/chunks/tier_chunks.h"

#include <cstring>

#include "base/crash_point.h"

namespace holdfast {

Status TierError(const Status& status) {
  return status.code() == ErrorCode::kIoError ? UnavailableError(status.message()) : status;
}

Status TierChunks::Check() const {
  if (store_ != nullptr) return Status::Ok();
  return FailedPreconditionError("this node has no tier " + std::string(TraitsOf(tier_).name));
}

Result<ShardSeal> TierChunks::ReadSeal() {
  HOLDFAST_RETURN_IF_ERROR(Check());
  auto seal = store_->ReadSeal(key_);
  if (!seal) return Fail(TierError(seal.error()));
  return seal;
}

Status TierChunks::Read(const ShardSeal& seal, std::span<WantedChunk> chunks) {
  HOLDFAST_RETURN_IF_ERROR(Check());
  HOLDFAST_RETURN_IF_ERROR(CheckWanted(key_, seal, chunks));
  MutexLock lock(mutex_);
  if (files_ == nullptr) {
    auto files = store_->OpenChunks(key_);
    if (!files) return TierError(files.error());
    files_ = *std::move(files);
  }
  if (!SameImage(files_->seal(), seal)) {
    return NotFoundError("the replica there is another image than the wanted one");
  }
  Status bad;
  for (WantedChunk& chunk : chunks) {
    if (chunk.done) continue;
    const auto bytes = files_->Read(chunk.index);
    if (!bytes && bytes.error().code() != ErrorCode::kDataLoss) return TierError(bytes.error());
    if (!bytes) {
      if (bad.ok()) bad = bytes.error();
      continue;
    }
    std::memcpy(chunk.into.data(), bytes->data(), bytes->size());
    chunk.done = true;
    HOLDFAST_CRASH_POINT("agent.mid_restore");
  }
  return bad;
}

}  // namespace holdfast
