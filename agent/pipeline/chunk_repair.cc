#include "agent/pipeline/chunk_repair.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <utility>

#include "agent/parity/rebuild.h"
#include "base/crash_point.h"
#include "base/log.h"
#include "storage/format/checksum.h"

namespace holdfast::agent {
namespace {

// Number of chunks decoded at a time: bounds the memory outside the arena.
constexpr size_t kBatch = 16;
constexpr std::chrono::minutes kDecodeTime(5);

uint64_t BytesOf(const ShardSeal& seal, uint64_t chunk) {
  return std::min(kChunkBytes, seal.image_bytes - chunk * kChunkBytes);
}

bool IsGood(const ShardSeal& seal, uint64_t chunk, std::span<const std::byte> bytes) {
  return Crc32c(bytes) == seal.chunk_crcs[chunk];
}

/// Gets good chunks of one shard from the node's other tier, or else has the parity group decode
/// them.
class ChunkFinder {
 public:
  ChunkFinder(const RestoreTools& tools, RankSlots* slots, const PrepareTask& prepare,
              const ShardSeal& seal)
      : tools_(tools), slots_(slots), prepare_(prepare), seal_(seal) {}

  /// Calls `put` with each of `chunks`, after the chunk was verified. `other_tier` is the tier of
  /// this node that is tried first.
  Status Find(std::span<const uint64_t> chunks, Tier other_tier,
              const std::function<Status(uint64_t chunk, std::span<const std::byte>)>& put) {
    while (!chunks.empty()) {
      const auto batch = chunks.first(std::min(kBatch, chunks.size()));
      chunks = chunks.subspan(batch.size());
      buffer_.resize(batch.size() * kChunkBytes);
      std::vector<ImageRange> missing;
      for (size_t i = 0; i < batch.size(); ++i) {
        const auto into = At(i, batch[i]);
        if (!CopyFromTier(batch[i], other_tier, into)) {
          missing.push_back({batch[i] * kChunkBytes, into});
        }
      }
      if (!missing.empty()) HOLDFAST_RETURN_IF_ERROR(Decode(missing));
      for (size_t i = 0; i < batch.size(); ++i) {
        if (!IsGood(seal_, batch[i], At(i, batch[i]))) {
          return DataLossError(
              fmt::format("{} as decoded from its group: chunk {} does not match its checksum",
                          ToString(seal_.identity.key()), batch[i]));
        }
        HOLDFAST_RETURN_IF_ERROR(put(batch[i], At(i, batch[i])));
      }
    }
    return Status::Ok();
  }

  /// Number of bytes that the group decoded.
  uint64_t decoded_bytes() const { return decoded_.load(); }

 private:
  std::span<std::byte> At(size_t place, uint64_t chunk) {
    return std::span(buffer_).subspan(place * kChunkBytes, BytesOf(seal_, chunk));
  }

  /// Returns false when the tier has no good replica of the chunk.
  bool CopyFromTier(uint64_t chunk, Tier tier, std::span<std::byte> into) {
    return tier == Tier::kMemory ? CopyFromMemory(chunk, into) : CopyFromDisk(chunk, into);
  }

  bool CopyFromMemory(uint64_t chunk, std::span<std::byte> into) {
    if (slots_ == nullptr) return false;
    const auto slot =
        slots_->pins().Pin(prepare_.identity.version, SlotPins::Find::kIncludeDamaged);
    if (!slot) return false;
    const auto seal = slots_->segment().seal(*slot);
    const bool same = seal && seal->digest() == seal_.digest();
    if (same) {
      std::memcpy(into.data(), slots_->segment().slot(*slot).data() + chunk * kChunkBytes,
                  into.size());
    }
    slots_->pins().Unpin(*slot);
    return same && IsGood(seal_, chunk, into);
  }

  bool CopyFromDisk(uint64_t chunk, std::span<std::byte> into) {
    if (disk_ == nullptr) {
      auto chunks = tools_.volume.OpenChunks(prepare_.identity.key());
      if (!chunks || (*chunks)->seal().digest() != seal_.digest()) return false;
      disk_ = *std::move(chunks);
    }
    const auto bytes = disk_->Read(chunk);
    if (bytes) {
      std::memcpy(into.data(), bytes->data(), into.size());
    } else if (bytes.error().code() != ErrorCode::kDataLoss) {
      disk_.reset();  // after a device error the open files can no longer be used
    }
    return bytes.has_value();
  }

  Status Decode(std::span<const ImageRange> ranges) {
    if (!prepare_.group) {
      return DataLossError(
          ToString(seal_.identity.key()) +
          " has bad chunks, and the directive names no parity group to decode them");
    }
    const ShardIdentity& identity = prepare_.identity;
    Cancellation cancellation;
    const GroupAccess access = tools_.Group(*prepare_.group, identity.job, identity.version,
                                            prepare_.current, cancellation);
    const Status status = DecodeRanges(
        access, identity, ranges,
        [this](uint64_t bytes) {
          decoded_ += bytes;
          HOLDFAST_CRASH_POINT("agent.mid_restore");
        },
        Clock::Real().Now() + kDecodeTime);
    // IoError is reserved for this node's devices; here it comes from another node's device.
    return status.code() == ErrorCode::kIoError ? DataLossError(status.message()) : status;
  }

  const RestoreTools& tools_;
  RankSlots* const slots_;  // nullptr: the shard has no memory on this node
  const PrepareTask& prepare_;
  const ShardSeal& seal_;
  std::vector<std::byte> buffer_;
  std::unique_ptr<ShardChunks> disk_;
  std::atomic<uint64_t> decoded_{0};
};

Status CheckDigest(const PrepareTask& prepare, const ShardSeal& seal) {
  if (prepare.digest == 0 || prepare.digest == seal.digest()) return Status::Ok();
  return DataLossError(
      fmt::format("the replica of {} has digest {:016x}, the committed one {:016x}",
                  ToString(prepare.identity.key()), seal.digest(), prepare.digest));
}

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
    const auto bytes = segment.slot(slot).subspan(chunk * kChunkBytes, BytesOf(seal, chunk));
    if (!IsGood(seal, chunk, bytes)) bad.push_back(chunk);
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
  HOLDFAST_RETURN_IF_ERROR(CheckDigest(prepare, seal));
  HOLDFAST_ASSIGN_OR_RETURN(const auto bad, BadChunksInMemory(slots.segment(), slot));
  ChunkFinder finder(tools, &slots, prepare, seal);
  const std::span<std::byte> image = slots.segment().slot(slot);
  HOLDFAST_RETURN_IF_ERROR(
      finder.Find(bad, Tier::kDisk, [&](uint64_t chunk, std::span<const std::byte> bytes) {
        const auto place = image.subspan(chunk * kChunkBytes, bytes.size());
        Overwrite(place, bytes);
        if (IsGood(seal, chunk, place)) return Status::Ok();
        return IoErrorError(
            fmt::format("slot {}: chunk {} reads differently after it was written", slot, chunk));
      }));
  slots.pins().Verified(slot, /*on_disk=*/false);
  LogRepaired(seal, Tier::kMemory, bad.size(), finder.decoded_bytes());
  tools.damage.OnVerified(prepare.identity, Tier::kMemory, seal);
  return Status::Ok();
}

Status RepairOnDisk(const RestoreTools& tools, RankSlots* slots, const PrepareTask& prepare) {
  const ShardKey key = prepare.identity.key();
  HOLDFAST_ASSIGN_OR_RETURN(const ShardSeal seal, tools.volume.ReadSeal(key));
  HOLDFAST_RETURN_IF_ERROR(CheckDigest(prepare, seal));
  HOLDFAST_ASSIGN_OR_RETURN(const auto bad, BadChunksOnDisk(tools.volume, key));
  ChunkFinder finder(tools, slots, prepare, seal);
  HOLDFAST_RETURN_IF_ERROR(
      finder.Find(bad, Tier::kMemory, [&](uint64_t chunk, std::span<const std::byte> bytes) {
        const Status written = tools.volume.RewriteChunk(key, chunk, bytes);
        // DataLoss here means that the disk returned other bytes than were written.
        return written.code() == ErrorCode::kDataLoss ? IoErrorError(written.message()) : written;
      }));
  // Damage outside the chunks cannot be repaired.
  const Status structure = tools.volume.VerifyShard(key, /*deep=*/false);
  if (structure.code() == ErrorCode::kDataLoss) return IoErrorError(structure.message());
  HOLDFAST_RETURN_IF_ERROR(structure);
  LogRepaired(seal, Tier::kDisk, bad.size(), finder.decoded_bytes());
  tools.damage.OnVerified(prepare.identity, Tier::kDisk, seal);
  return Status::Ok();
}

Result<ShardSeal> FillFromDisk(
    const RestoreTools& tools, RankSlots& slots, const PrepareTask& prepare,
    const std::function<Result<std::span<std::byte>>(uint64_t image_bytes)>& lease) {
  const auto none = [&] {
    return Fail(NotFoundError(ToString(prepare.identity.key()) + " is not on this node's disk"));
  };
  auto chunks = tools.volume.OpenChunks(prepare.identity.key());
  if (!chunks) return none();
  const ShardSeal seal = (*chunks)->seal();
  if (!CheckDigest(prepare, seal).ok()) return none();
  HOLDFAST_ASSIGN_OR_RETURN(const std::span<std::byte> image, lease(seal.image_bytes));
  std::vector<uint64_t> all(seal.chunk_crcs.size());
  for (uint64_t chunk = 0; chunk < all.size(); ++chunk) all[chunk] = chunk;
  ChunkFinder finder(tools, &slots, prepare, seal);
  HOLDFAST_RETURN_IF_ERROR(
      finder.Find(all, Tier::kDisk, [&](uint64_t chunk, std::span<const std::byte> bytes) {
        std::memcpy(image.data() + chunk * kChunkBytes, bytes.data(), bytes.size());
        HOLDFAST_CRASH_POINT("agent.mid_restore");
        return Status::Ok();
      }));
  Log(LogLevel::kInfo, "ShardDecoded",
      {Kv("shard", ToString(seal.identity.key())), Kv("bytes", seal.image_bytes),
       Kv("decoded_bytes", finder.decoded_bytes())});
  return seal;
}

}  // namespace holdfast::agent
