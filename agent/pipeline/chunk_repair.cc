#include "agent/pipeline/chunk_repair.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "base/crash_point.h"
#include "base/log.h"

namespace holdfast::agent {
namespace {

// Number of chunks read at a time: bounds the memory outside the arena.
constexpr size_t kBatch = 16;

/// The other tier of this node and the parity group, from which bad chunks of a replica are
/// replaced.
class GoodChunks {
 public:
  GoodChunks(const RestoreTools& tools, const PrepareTask& prepare, const ShardSeal& seal,
             Tier other_tier)
      : seal_(seal) {
    const ShardKey key = prepare.identity.key();
    sources_.push_back(tools.local.Source(key, other_tier));
    if (prepare.group) {
      auto decoded = std::make_unique<DecodedChunks>(
          tools.reach, std::make_shared<GroupPlan>(*prepare.group), key, prepare.current);
      decoded_ = decoded.get();
      sources_.push_back(std::move(decoded));
    }
    selector_.emplace(key, seal.digest(), sources_, tools.damage);
  }

  /// Calls `put` with each of `chunks`.
  Status Read(std::span<const uint64_t> chunks,
              const std::function<Status(uint64_t chunk, std::span<const std::byte>)>& put) {
    std::vector<std::byte> buffer;
    while (!chunks.empty()) {
      const auto batch = chunks.first(std::min(kBatch, chunks.size()));
      chunks = chunks.subspan(batch.size());
      buffer.resize(batch.size() * kChunkBytes);
      std::vector<WantedChunk> wanted;
      for (size_t i = 0; i < batch.size(); ++i) {
        wanted.push_back(
            {batch[i], std::span(buffer).subspan(i * kChunkBytes, ChunkBytes(seal_, batch[i]))});
      }
      const Status read = selector_->Read(seal_, wanted);
      if (!read.ok()) return NoGoodChunk(read);
      for (const WantedChunk& chunk : wanted) {
        HOLDFAST_RETURN_IF_ERROR(put(chunk.index, chunk.into));
      }
    }
    return Status::Ok();
  }

  uint64_t decoded_bytes() const { return decoded_ == nullptr ? 0 : decoded_->decoded_bytes(); }

 private:
  /// IoError is reserved for the replica that is repaired, and NotFound for its absence.
  Status NoGoodChunk(const Status& read) const {
    const bool taken = read.code() == ErrorCode::kIoError || read.code() == ErrorCode::kNotFound;
    const Status status = taken ? DataLossError(read.message()) : read;
    if (decoded_ != nullptr) return status;
    return status.WithContext("the directive names no parity group to decode the bad chunks of " +
                              ToString(seal_.identity.key()));
  }

  const ShardSeal& seal_;
  SourceList sources_;
  DecodedChunks* decoded_ = nullptr;
  std::optional<SourceSelector> selector_;
};

void LogRepaired(const ShardSeal& seal, Tier tier, size_t chunks, uint64_t decoded) {
  Log(LogLevel::kInfo, "ShardChunksRepaired",
      {Kv("shard", ToString(seal.identity.key())), Kv("tier", ToString(tier)), Kv("chunks", chunks),
       Kv("decoded_bytes", decoded)});
}

/// Copies in two halves, so that a crash point can interrupt the copy in the middle.
void Overwrite(std::span<std::byte> chunk, std::span<const std::byte> bytes) {
  const size_t half = bytes.size() / 2;
  std::memcpy(chunk.data(), bytes.data(), half);
  HOLDFAST_CRASH_POINT("agent.mid_repair");
  std::memcpy(chunk.data() + half, bytes.data() + half, bytes.size() - half);
}

}  // namespace

Result<std::vector<uint64_t>> BadChunksInMemory(Segment& segment, uint32_t slot) {
  HOLDFAST_ASSIGN_OR_RETURN(const ShardSeal seal, segment.seal(slot));
  std::vector<uint64_t> bad;
  for (uint64_t chunk = 0; chunk < seal.chunk_crcs.size(); ++chunk) {
    const auto bytes = segment.slot(slot).subspan(chunk * kChunkBytes, ChunkBytes(seal, chunk));
    if (!IsChunk(seal, chunk, bytes)) bad.push_back(chunk);
  }
  return bad;
}

Result<std::vector<uint64_t>> BadChunksOnDisk(const Volume& volume, const ShardKey& key) {
  HOLDFAST_ASSIGN_OR_RETURN(auto chunks, volume.OpenChunks(key));
  std::vector<uint64_t> bad;
  const uint64_t count = chunks->seal().chunk_crcs.size();
  for (uint64_t chunk = 0; chunk < count; ++chunk) {
    const auto bytes = chunks->Read(chunk);
    if (bytes) continue;
    const ErrorCode code = bytes.error().code();
    if (code != ErrorCode::kDataLoss && code != ErrorCode::kIoError) return Fail(bytes.error());
    bad.push_back(chunk);
    if (code == ErrorCode::kDataLoss) continue;
    // After a device error the open files can no longer be used.
    HOLDFAST_ASSIGN_OR_RETURN(chunks, volume.OpenChunks(key));
  }
  return bad;
}

Status RepairInMemory(const RestoreTools& tools, RankSlots& slots, const PrepareTask& prepare,
                      uint32_t slot) {
  HOLDFAST_ASSIGN_OR_RETURN(const ShardSeal seal, slots.segment().seal(slot));
  HOLDFAST_RETURN_IF_ERROR(CheckDigest(seal, prepare.digest));
  HOLDFAST_ASSIGN_OR_RETURN(const auto bad, BadChunksInMemory(slots.segment(), slot));
  GoodChunks good(tools, prepare, seal, Tier::kDisk);
  const std::span<std::byte> image = slots.segment().slot(slot);
  HOLDFAST_RETURN_IF_ERROR(good.Read(bad, [&](uint64_t chunk, std::span<const std::byte> bytes) {
    const auto place = image.subspan(chunk * kChunkBytes, bytes.size());
    Overwrite(place, bytes);
    if (IsChunk(seal, chunk, place)) return Status::Ok();
    return IoErrorError(
        fmt::format("slot {}: chunk {} reads differently after it was written", slot, chunk));
  }));
  slots.pins().Verified(slot, /*on_disk=*/false);
  LogRepaired(seal, Tier::kMemory, bad.size(), good.decoded_bytes());
  tools.damage.OnVerified(prepare.identity, Tier::kMemory, seal);
  return Status::Ok();
}

Status RepairOnDisk(const RestoreTools& tools, const PrepareTask& prepare) {
  const ShardKey key = prepare.identity.key();
  HOLDFAST_ASSIGN_OR_RETURN(const ShardSeal seal, tools.volume.ReadSeal(key));
  HOLDFAST_RETURN_IF_ERROR(CheckDigest(seal, prepare.digest));
  HOLDFAST_ASSIGN_OR_RETURN(const auto bad, BadChunksOnDisk(tools.volume, key));
  GoodChunks good(tools, prepare, seal, Tier::kMemory);
  HOLDFAST_RETURN_IF_ERROR(good.Read(bad, [&](uint64_t chunk, std::span<const std::byte> bytes) {
    const Status written = tools.volume.RewriteChunk(key, chunk, bytes);
    // DataLoss here means that the disk returned other bytes than were written.
    return written.code() == ErrorCode::kDataLoss ? IoErrorError(written.message()) : written;
  }));
  // Damage outside the chunks cannot be repaired.
  const Status structure = tools.volume.VerifyShard(key, /*deep=*/false);
  if (structure.code() == ErrorCode::kDataLoss) return IoErrorError(structure.message());
  HOLDFAST_RETURN_IF_ERROR(structure);
  LogRepaired(seal, Tier::kDisk, bad.size(), good.decoded_bytes());
  tools.damage.OnVerified(prepare.identity, Tier::kDisk, seal);
  return Status::Ok();
}

}  // namespace holdfast::agent
