#include "agent/pipeline/disk_rebuild.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "agent/chunks/decoded_chunks.h"
#include "agent/chunks/peer_chunks.h"
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

/// Returns where the shard comes from: its group, or the node that the directive names.
Result<std::unique_ptr<ChunkSource>> SourceOf(const RestoreTools& tools,
                                              const PrepareTask& prepare) {
  const ShardKey key = prepare.identity.key();
  if (prepare.group) {
    return std::make_unique<DecodedChunks>(tools.reach, std::make_shared<GroupPlan>(*prepare.group),
                                           key, prepare.current);
  }
  const bool elsewhere = !prepare.source_node.empty() && prepare.source_node != tools.node();
  if (!elsewhere || IsParity(key.rank)) {
    return Fail(InvalidArgumentError("the directive for " + ToString(key) +
                                     " names no parity group and no other node"));
  }
  return std::make_unique<PeerChunks>(
      tools.reach.transport, tools.clock,
      PeerPlace{prepare.source_node, prepare.source_peer_address, prepare.tier}, key,
      prepare.current);
}

/// Returns the parts of the seal that are known before the shard is read. A rank's seal comes from
/// the source and is complete; a parity seal has no checksums yet.
Result<ShardSeal> ExpectedSeal(ChunkSource& source, const PrepareTask& prepare,
                               const RestoreTools& tools) {
  const ShardIdentity& identity = prepare.identity;
  if (!IsParity(identity.rank)) {
    HOLDFAST_ASSIGN_OR_RETURN(ShardSeal seal, source.ReadSeal());
    if (seal.identity != identity) {
      return Fail(
          DataLossError(fmt::format("{}: the seal of {}, when asked for {}", source.where(),
                                    ToString(seal.identity.key()), ToString(identity.key()))));
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

/// NotFound means that the source has no replica; here a data directory is missing.
Status AsDiskError(const Status& status) {
  return status.code() == ErrorCode::kNotFound ? UnavailableError(status.message()) : status;
}

/// Decodes a window of a parity shard and adds its checksums to the seal, which no other member
/// has.
Status DecodeParityWindow(const RestoreTools& tools, const PrepareTask& prepare, ShardSeal& seal,
                          uint64_t begin, std::span<std::byte> window) {
  std::vector<WantedRange> ranges;
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

/// Reads and checks a window of the shard.
Status ReadWindow(const RestoreTools& tools, const PrepareTask& prepare, ChunkSource& source,
                  ShardSeal& seal, uint64_t begin, std::span<std::byte> window) {
  if (IsParity(seal.identity.rank)) return DecodeParityWindow(tools, prepare, seal, begin, window);
  std::vector<WantedChunk> chunks = ChunksOf(seal, begin / kChunkBytes, window);
  return source.Read(seal, chunks).WithContext(source.where());
}

}  // namespace

Status RebuildOnDisk(const RestoreTools& tools, const PrepareTask& prepare) {
  const ShardIdentity& identity = prepare.identity;
  HOLDFAST_ASSIGN_OR_RETURN(const auto source, SourceOf(tools, prepare));
  HOLDFAST_ASSIGN_OR_RETURN(ShardSeal seal, ExpectedSeal(*source, prepare, tools));
  if (!IsParity(identity.rank)) HOLDFAST_RETURN_IF_ERROR(CheckDigest(seal, prepare.digest));
  // The coordinator repeats the directive. Peers must not send a shard each time while this node
  // has no room for it.
  if (tools.volume.FreeBytes() < seal.image_bytes) {
    return OutOfSpaceError(fmt::format("{} needs {} bytes on disk, and {} are free",
                                       ToString(identity.key()), seal.image_bytes,
                                       tools.volume.FreeBytes()));
  }
  HOLDFAST_ASSIGN_OR_RETURN(SparseImage memory,
                            SparseImage::Make(RoundUp(seal.image_bytes, kBlockBytes)));
  const std::span<std::byte> image = memory.bytes().first(seal.image_bytes);
  auto created = tools.volume.CreateShard(identity, image);
  if (!created) return AsDiskError(created.error());
  const auto writer = *std::move(created);
  bool header_checked = false;
  for (uint64_t at = 0; at < image.size();) {
    if (tools.stopping()) return CancelledError("the agent is stopping");
    const auto window = image.subspan(at, std::min<uint64_t>(kWindowBytes, image.size() - at));
    HOLDFAST_RETURN_IF_ERROR(ReadWindow(tools, prepare, *source, seal, at, window));
    at += window.size();
    if (!header_checked) {
      HOLDFAST_ASSIGN_OR_RETURN(const uint64_t header_bytes, HeaderBytes(image, image.size()));
      if (header_bytes > at) continue;
      HOLDFAST_RETURN_IF_ERROR(CheckImageIdentity(image, identity));
      header_checked = true;
    }
    HOLDFAST_RETURN_IF_ERROR(AsDiskError(writer->Advance(at)));
    const auto written = writer->Settle();
    if (!written) return AsDiskError(written.error());
    for (const auto& [begin, end] : *written) memory.Drop(begin, end);
  }
  HOLDFAST_RETURN_IF_ERROR(CheckDigest(seal, prepare.digest));
  HOLDFAST_RETURN_IF_ERROR(AsDiskError(writer->Publish(seal)));
  Log(LogLevel::kInfo, "ShardRebuilt",
      {Kv("shard", ToString(identity.key())), Kv("from", source->where()),
       Kv("bytes", seal.image_bytes)});
  tools.link.Report(
      StoredReplica{identity, Tier::kDisk, seal.digest(), seal.image_bytes, "", seal.life});
  return Status::Ok();
}

}  // namespace holdfast::agent
