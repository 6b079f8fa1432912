#include "agent/pipeline/disk_rebuild.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "agent/chunks/decoded_chunks.h"
#include "agent/parity/rebuild.h"
#include "agent/pipeline/sealer.h"
#include "agent/pipeline/sparse_image.h"
#include "base/crash_point.h"
#include "base/log.h"
#include "storage/format/checksum.h"
#include "storage/format/image.h"
#include "storage/parity/parity_image.h"

namespace holdfast::agent {
namespace {

// Each window is decoded, checked and written before the next one, which bounds the memory.
constexpr uint64_t kWindowBytes = 64 * kChunkBytes;
// A window of a parity shard is divided into four ranges, which several members decode at the same
// time.
constexpr uint64_t kRangeBytes = kWindowBytes / 4;
constexpr std::chrono::minutes kWindowTime(5);

/// Returns the parts of the seal that are known before the shard is decoded. A rank's seal comes
/// from the group and is complete; a parity seal has no checksums yet.
Result<ShardSeal> ExpectedSeal(DecodedChunks& decoded, const PrepareTask& prepare,
                               const RestoreTools& tools) {
  const ShardIdentity& identity = prepare.identity;
  if (!IsParity(identity.rank)) {
    HOLDFAST_ASSIGN_OR_RETURN(ShardSeal seal, decoded.ReadSeal());
    if (seal.identity != identity) {
      return Fail(DataLossError("the group sent the seal of " + ToString(seal.identity.key()) +
                                " when asked for " + ToString(identity.key())));
    }
    seal.parts.clear();
    seal.image_header.clear();
    return seal;
  }
  const auto position = prepare.group->PositionOf(tools.node());
  if (!position) {
    return Fail(InvalidArgumentError("node " + tools.node() + " is not in the parity group"));
  }
  HOLDFAST_ASSIGN_OR_RETURN(const ParityImage image,
                            ParityImage::Make(*prepare.group, *position, identity));
  ShardSeal seal;
  seal.identity = identity;
  seal.image_bytes = image.image_bytes();
  seal.wall_nanos = tools.clock.WallNanos();
  return seal;
}

Status CheckDecodedDigest(const PrepareTask& prepare, const ShardSeal& seal) {
  if (prepare.digest == 0 || prepare.digest == seal.digest()) return Status::Ok();
  return DataLossError(
      fmt::format("{} was decoded with digest {:016x}; the committed one is {:016x}",
                  ToString(prepare.identity.key()), seal.digest(), prepare.digest));
}

/// Decodes a window of a parity shard and adds its checksums to the seal, which no other member
/// has.
Status DecodeParityWindow(const RestoreTools& tools, const PrepareTask& prepare, ShardSeal& seal,
                          uint64_t begin, std::span<std::byte> window) {
  std::vector<ImageRange> ranges;
  for (uint64_t at = 0; at < window.size(); at += kRangeBytes) {
    ranges.push_back(
        {begin + at, window.subspan(at, std::min<uint64_t>(kRangeBytes, window.size() - at))});
  }
  const ShardIdentity& identity = prepare.identity;
  Cancellation cancellation;
  const GroupAccess access =
      tools.reach.To(*prepare.group, identity.job, identity.version, prepare.current, cancellation);
  const Status status = DecodeRanges(
      access, identity, ranges, [](uint64_t) { HOLDFAST_CRASH_POINT("agent.mid_restore"); },
      access.clock.Now() + kWindowTime);
  // IoError is reserved for this node's devices; here it comes from another node's device.
  if (status.code() == ErrorCode::kIoError) return DataLossError(status.message());
  HOLDFAST_RETURN_IF_ERROR(status);
  for (const uint32_t crc : ChunkCrcs(window)) seal.chunk_crcs.push_back(crc);
  return Status::Ok();
}

/// Decodes and checks a window of the shard.
Status DecodeWindow(const RestoreTools& tools, const PrepareTask& prepare, DecodedChunks& decoded,
                    ShardSeal& seal, uint64_t begin, std::span<std::byte> window) {
  if (IsParity(seal.identity.rank)) return DecodeParityWindow(tools, prepare, seal, begin, window);
  std::vector<WantedChunk> chunks = ChunksOf(seal, begin / kChunkBytes, window);
  return decoded.Read(seal, chunks).WithContext(decoded.where());
}

}  // namespace

Status RebuildOnDisk(const RestoreTools& tools, const PrepareTask& prepare) {
  if (!prepare.group) {
    return InvalidArgumentError("the directive for " + ToString(prepare.identity.key()) +
                                " names no parity group");
  }
  const ShardIdentity& identity = prepare.identity;
  DecodedChunks decoded(tools.reach, std::make_shared<GroupPlan>(*prepare.group), identity.key(),
                        prepare.current);
  HOLDFAST_ASSIGN_OR_RETURN(ShardSeal seal, ExpectedSeal(decoded, prepare, tools));
  if (!IsParity(identity.rank)) HOLDFAST_RETURN_IF_ERROR(CheckDecodedDigest(prepare, seal));
  // The coordinator repeats the directive. Peers must not decode a shard each time while this node
  // has no room for it.
  if (tools.volume.FreeBytes() < seal.image_bytes) {
    return OutOfSpaceError(fmt::format("{} needs {} bytes on disk, and {} are free",
                                       ToString(identity.key()), seal.image_bytes,
                                       tools.volume.FreeBytes()));
  }
  HOLDFAST_ASSIGN_OR_RETURN(SparseImage memory,
                            SparseImage::Make(RoundUp(seal.image_bytes, kBlockBytes)));
  const std::span<std::byte> image = memory.bytes().first(seal.image_bytes);
  HOLDFAST_ASSIGN_OR_RETURN(auto writer, tools.volume.CreateShard(identity, image));
  bool header_checked = false;
  for (uint64_t at = 0; at < image.size();) {
    if (tools.stopping()) return CancelledError("the agent is stopping");
    const auto window = image.subspan(at, std::min<uint64_t>(kWindowBytes, image.size() - at));
    HOLDFAST_RETURN_IF_ERROR(DecodeWindow(tools, prepare, decoded, seal, at, window));
    at += window.size();
    if (!header_checked) {
      HOLDFAST_ASSIGN_OR_RETURN(const uint64_t header_bytes, HeaderBytes(image, image.size()));
      if (header_bytes > at) continue;
      HOLDFAST_RETURN_IF_ERROR(CheckImageIdentity(image, identity));
      header_checked = true;
    }
    HOLDFAST_RETURN_IF_ERROR(writer->Advance(at));
    HOLDFAST_ASSIGN_OR_RETURN(const auto written, writer->Settle());
    for (const auto& [begin, end] : written) memory.Drop(begin, end);
  }
  HOLDFAST_RETURN_IF_ERROR(CheckDecodedDigest(prepare, seal));
  HOLDFAST_RETURN_IF_ERROR(writer->Publish(seal));
  Log(LogLevel::kInfo, "ShardRebuilt",
      {Kv("shard", ToString(identity.key())), Kv("bytes", seal.image_bytes)});
  tools.link.Report(
      StoredReplica{identity, Tier::kDisk, seal.digest(), seal.image_bytes, "", seal.life});
  return Status::Ok();
}

}  // namespace holdfast::agent
