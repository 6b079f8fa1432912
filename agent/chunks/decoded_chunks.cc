#include "agent/chunks/decoded_chunks.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "agent/parity/rebuild.h"
#include "base/clock.h"
#include "base/crash_point.h"

namespace holdfast::agent {
namespace {

// The transport detects much sooner that a decoder has stopped sending.
constexpr std::chrono::minutes kDecodeTime(5);
constexpr std::chrono::minutes kSealTime(1);
constexpr uint64_t kRangeChunksMin = 16;

/// IoError is reserved for this node's devices; here it comes from another node's device.
Status AsGroupError(const Status& status) {
  return status.code() == ErrorCode::kIoError ? DataLossError(status.message()) : status;
}

/// Returns the chunks that are not done as ranges of consecutive chunks. Several members decode the
/// ranges at the same time, so a long run of chunks is divided into a few.
std::vector<WantedRange> RangesOf(std::span<const WantedChunk> chunks) {
  const uint64_t chunks_max = std::max(kRangeChunksMin, (chunks.size() + 3) / 4);
  std::vector<WantedRange> ranges;
  for (const WantedChunk& chunk : chunks) {
    if (chunk.done) continue;
    const uint64_t begin = chunk.index * kChunkBytes;
    if (!ranges.empty()) {
      WantedRange& last = ranges.back();
      const bool follows = last.begin + last.into.size() == begin &&
                           last.into.data() + last.into.size() == chunk.into.data() &&
                           last.into.size() < chunks_max * kChunkBytes;
      if (follows) {
        last.into = {last.into.data(), last.into.size() + chunk.into.size()};
        continue;
      }
    }
    ranges.push_back({begin, chunk.into});
  }
  return ranges;
}

}  // namespace

Result<ShardSeal> DecodedChunks::ReadSeal() {
  Cancellation cancellation;
  const GroupAccess access = reach_.To(*plan_, key_.job, key_.version, incarnation_, cancellation);
  auto seal = FetchSeal(access, key_.rank, reach_.clock.Now() + kSealTime);
  if (!seal) return Fail(AsGroupError(seal.error()));
  return seal;
}

Status DecodedChunks::Read(const ShardSeal& seal, std::span<WantedChunk> chunks) {
  HOLDFAST_RETURN_IF_ERROR(CheckWanted(key_, seal, chunks));
  const std::vector<WantedRange> ranges = RangesOf(chunks);
  if (ranges.empty()) return Status::Ok();
  Cancellation cancellation;
  const GroupAccess access = reach_.To(*plan_, key_.job, key_.version, incarnation_, cancellation);
  const auto count = [this](uint64_t bytes) {
    decoded_bytes_ += bytes;
    HOLDFAST_CRASH_POINT("agent.mid_restore");
  };
  HOLDFAST_RETURN_IF_ERROR(AsGroupError(
      DecodeRanges(access, seal.identity, ranges, count, reach_.clock.Now() + kDecodeTime)));
  Status damage;
  for (WantedChunk& chunk : chunks) {
    if (chunk.done) continue;
    chunk.done = IsChunk(seal, chunk.index, chunk.into);
    if (!chunk.done && damage.ok()) damage = BadChunkError(seal, chunk.index);
  }
  return damage;
}

}  // namespace holdfast::agent
