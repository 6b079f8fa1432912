#include "agent/pipeline/restore.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "agent/parity/rebuild.h"
#include "agent/pipeline/chunk_repair.h"
#include "agent/pipeline/disk_rebuild.h"
#include "agent/pipeline/sealer.h"
#include "base/crash_point.h"
#include "base/log.h"
#include "storage/format/checksum.h"
#include "storage/parity/parity_image.h"

namespace holdfast::agent {
namespace {

// How long a restore waits for a slot. A slot that is being written to disk is usually free by
// then.
constexpr std::chrono::seconds kSlotWait(20);
constexpr std::chrono::milliseconds kSlotPoll(20);
// Time limit of a complete rebuild. The transport detects much sooner that a decoder has stopped
// sending.
constexpr std::chrono::minutes kRebuildTime(5);
constexpr uint64_t kChunksPerChecker = 128;  // minimum per thread: 128 MiB
constexpr uint64_t kCheckersMax = 4;

Status CheckDigest(const PrepareTask& prepare, const ShardSeal& seal) {
  if (prepare.digest == 0 || prepare.digest == seal.digest()) return Status::Ok();
  return Status(ErrorCode::kDataLoss,
                fmt::format("the replica of {} has digest {:016x}, the committed one {:016x}",
                            ToString(prepare.identity.key()), seal.digest(), prepare.digest));
}

// Restores from the slot that already has the version, after a repair of its bad chunks. Returns
// nullopt when another source must be tried.
std::optional<Status> UseSlotInMemory(const RestoreTools& tools, RankSlots& slots,
                                      const PrepareTask& prepare) {
  const ShardKey key = prepare.identity.key();
  auto slot = slots.pins().Pin(key.version, SlotPins::Find::kAny);
  if (!slot) return std::nullopt;
  Status status;
  if (auto seal = slots.segment().seal(*slot); !seal) {
    status = seal.error();
    tools.damage.OnLost(key, Tier::kMemory, status);
  } else {
    status = CheckDigest(prepare, *seal);
    if (!status.ok()) {
      tools.damage.OnLost(key, Tier::kMemory, status);
    } else if (status = VerifySlot(slots.segment(), *slot); !status.ok()) {
      tools.damage.OnDamaged(key, Tier::kMemory, status);
      if (slots.pins().StaysAfterUnpin(*slot)) {
        const Status repaired = RepairInMemory(tools, slots, prepare, *slot);
        if (repaired.ok() || prepare.tier == Tier::kPeer) status = repaired;
        if (repaired.code() == ErrorCode::kIoError)
          tools.damage.OnLost(key, Tier::kMemory, repaired);
      }
    } else {
      slots.pins().Verified(*slot, /*on_disk=*/false);
    }
  }
  if (status.ok() && !IsParity(key.rank)) slots.fills().HoldForRestore(key.version);
  // A group that could not repair the bad chunks cannot decode the complete shard either.
  const bool decided = status.ok() || prepare.tier == Tier::kMemory ||
                       (prepare.tier == Tier::kPeer && slots.pins().StaysAfterUnpin(*slot));
  slots.pins().Unpin(*slot);
  if (!decided) return std::nullopt;
  return status;
}

/// Checks a large image on several threads, since a rank waits for the result.
uint64_t FirstBadChunkOf(std::span<const std::byte> image, std::span<const uint32_t> crcs) {
  const uint64_t chunks_each =
      std::max<uint64_t>(kChunksPerChecker, (crcs.size() + kCheckersMax - 1) / kCheckersMax);
  std::vector<uint64_t> bad(std::max<uint64_t>(1, (crcs.size() + chunks_each - 1) / chunks_each));
  const auto check = [&](uint64_t part) {
    const uint64_t first = part * chunks_each;
    const uint64_t begin = std::min<uint64_t>(first * kChunkBytes, image.size());
    const uint64_t left = image.size() - begin;
    const bool last = part + 1 == bad.size();
    const uint64_t bytes = last ? left : std::min<uint64_t>(chunks_each * kChunkBytes, left);
    bad[part] = FirstBadChunk(image.subspan(begin, bytes),
                              crcs.subspan(first, std::min(chunks_each, crcs.size() - first)));
    if (bad[part] != kNoChunk) bad[part] += first;
  };
  std::vector<std::thread> checkers;
  for (uint64_t part = 1; part < bad.size(); ++part) checkers.emplace_back(check, part);
  check(0);
  for (std::thread& checker : checkers) checker.join();
  return *std::min_element(bad.begin(), bad.end());
}

Result<uint32_t> LeaseSlot(const RestoreTools& tools, RankSlots& slots,
                           const ShardIdentity& identity, uint64_t image_bytes) {
  const Clock::TimePoint deadline = tools.clock.Now() + kSlotWait;
  for (;;) {
    std::vector<FreedSlot> freed;
    auto slot = slots.fills().LeaseToFill(identity.version, identity.world, image_bytes, &freed);
    for (const FreedSlot& old : freed) {
      tools.link.Report(RemovedReplica{{identity.job, old.version, identity.rank}, Tier::kMemory});
    }
    if (slot || slot.error().code() != ErrorCode::kResourceExhausted) return slot;
    if (tools.clock.Now() >= deadline) return slot;
    if (tools.stopping()) return Fail({ErrorCode::kCancelled, "the agent is stopping"});
    tools.clock.SleepFor(kSlotPoll);
  }
}

// A leased slot. The destructor frees it unless it was sealed.
class FillingSlot {
 public:
  FillingSlot(RankSlots& slots, uint32_t slot) : slots_(slots), slot_(slot) {}
  ~FillingSlot() {
    if (!sealed_) slots_.fills().DropFilled(slot_);
  }
  FillingSlot(const FillingSlot&) = delete;
  FillingSlot& operator=(const FillingSlot&) = delete;
  std::span<std::byte> memory() { return slots_.segment().slot(slot_); }
  Status Seal(const ShardSeal& seal) {
    Status status = slots_.fills().SealRestored(slot_, seal);
    sealed_ = status.ok();
    return status;
  }

 private:
  RankSlots& slots_;
  uint32_t slot_;
  bool sealed_ = false;
};

// Checks the identity of a filled slot, then seals and reports it.
Status SealFilled(const RestoreTools& tools, RankSlots& slots, const PrepareTask& prepare,
                  FillingSlot& filling, ShardSeal seal) {
  seal.parts.clear();
  seal.image_header.clear();
  HOLDFAST_RETURN_IF_ERROR(
      CheckImageIdentity(filling.memory().first(seal.image_bytes), prepare.identity));
  HOLDFAST_RETURN_IF_ERROR(filling.Seal(seal));
  if (!IsParity(prepare.identity.rank)) slots.fills().HoldForRestore(prepare.identity.version);
  tools.link.Report(
      StoredReplica{seal.identity, Tier::kMemory, seal.digest(), seal.image_bytes, "", seal.life});
  return Status::Ok();
}

std::function<void(uint64_t)> Progress() {
  return [](uint64_t) { HOLDFAST_CRASH_POINT("agent.mid_restore"); };
}

// Reports a replica on disk that is another image than the committed one (`wrong_digest`), or that
// has bad chunks.
void ReportBadOnDisk(const RestoreTools& tools, const ShardKey& key, const Status& how,
                     bool wrong_digest) {
  if (wrong_digest) {
    tools.damage.OnLost(key, Tier::kDisk, how);
  } else {
    tools.damage.OnDamaged(key, Tier::kDisk, how);
  }
}

Status ReadFromDisk(const RestoreTools& tools, RankSlots& slots, const PrepareTask& prepare) {
  const ShardKey key = prepare.identity.key();
  Status status;
  bool wrong_digest = false;
  auto stored = tools.volume.ReadSeal(key);
  if (!stored) {
    status = stored.error();
  } else {
    status = CheckDigest(prepare, *stored);
    wrong_digest = !status.ok();
    if (status.ok()) {
      HOLDFAST_ASSIGN_OR_RETURN(uint32_t slot,
                                LeaseSlot(tools, slots, prepare.identity, stored->image_bytes));
      FillingSlot filling(slots, slot);
      const std::span<std::byte> into =
          filling.memory().first(RoundUp(stored->image_bytes, kBlockBytes));
      auto seal = tools.volume.ReadShard(key, into, Progress());
      status = seal ? SealFilled(tools, slots, prepare, filling, *seal) : seal.error();
    }
  }
  if (status.code() == ErrorCode::kNotFound) {
    tools.link.Report(RemovedReplica{key, Tier::kDisk});
    return Status(ErrorCode::kDataLoss, status.message());
  }
  if (status.code() == ErrorCode::kDataLoss) {
    ReportBadOnDisk(tools, key, status, wrong_digest);
  }
  return status;
}

Status ReadFromNode(const RestoreTools& tools, RankSlots& slots, const PrepareTask& prepare) {
  const ShardIdentity& identity = prepare.identity;
  HOLDFAST_ASSIGN_OR_RETURN(
      auto stream, tools.fetcher.Open(prepare.source_address, identity.key(), prepare.tier));
  const ShardSeal seal = stream->seal();
  if (seal.identity != identity) {
    return Status(ErrorCode::kDataLoss,
                  fmt::format("node {} sent {} when asked for {}", prepare.source_node,
                              ToString(seal.identity.key()), ToString(identity.key())));
  }
  HOLDFAST_RETURN_IF_ERROR(CheckDigest(prepare, seal));
  HOLDFAST_ASSIGN_OR_RETURN(uint32_t slot, LeaseSlot(tools, slots, identity, seal.image_bytes));
  FillingSlot filling(slots, slot);
  Status status = stream->ReadInto(filling.memory(), Progress());
  if (!status.ok()) return status.WithContext("from node " + prepare.source_node);
  return SealFilled(tools, slots, prepare, filling, seal);
}

// Has the group's members decode the shard into a leased slot, and checks it.
Result<ShardSeal> Decode(const RestoreTools& tools, RankSlots& slots, const PrepareTask& prepare,
                         std::optional<FillingSlot>& filling) {
  const ShardIdentity& identity = prepare.identity;
  if (!prepare.group) {
    return Fail(InvalidArgumentError("the directive for " + ToString(identity.key()) +
                                     " names no parity group"));
  }
  Cancellation cancellation;
  const GroupAccess access =
      tools.Group(*prepare.group, identity.job, identity.version, prepare.current, cancellation);
  const Clock::TimePoint deadline = Clock::Real().Now() + kRebuildTime;
  ShardSeal seal;
  // A parity shard's length follows from the plan; a rank's shard needs the seal first.
  if (IsParity(identity.rank)) {
    const auto position = prepare.group->PositionOf(tools.node);
    if (!position) {
      return Fail(InvalidArgumentError("node " + tools.node + " is not in the parity group"));
    }
    HOLDFAST_ASSIGN_OR_RETURN(const ParityImage image,
                              ParityImage::Make(*prepare.group, *position, identity));
    HOLDFAST_ASSIGN_OR_RETURN(uint32_t slot,
                              LeaseSlot(tools, slots, identity, image.image_bytes()));
    filling.emplace(slots, slot);
    HOLDFAST_ASSIGN_OR_RETURN(
        seal, RebuildParity(access, *position, identity.world, filling->memory(), Progress(),
                            tools.clock, deadline));
  } else {
    HOLDFAST_ASSIGN_OR_RETURN(seal, FetchSeal(access, identity.rank, deadline));
    HOLDFAST_ASSIGN_OR_RETURN(uint32_t slot, LeaseSlot(tools, slots, identity, seal.image_bytes));
    filling.emplace(slots, slot);
    HOLDFAST_RETURN_IF_ERROR(RebuildShard(access, seal, filling->memory(), Progress(), deadline));
  }
  if (seal.identity != identity) {
    return Fail(DataLossError("the group sent the seal of " + ToString(seal.identity.key()) +
                              " when asked for " + ToString(identity.key())));
  }
  HOLDFAST_RETURN_IF_ERROR(CheckDigest(prepare, seal));
  Log(LogLevel::kInfo, "ShardDecoded",
      {Kv("shard", ToString(identity.key())), Kv("bytes", seal.image_bytes)});
  return seal;
}

// Copies the shard from the rank's retained segment.
Status ReadFromMemory(const RestoreTools& tools, RankSlots& slots, const PrepareTask& prepare,
                      ShardReader& reader) {
  const ShardSeal& seal = reader.seal();
  HOLDFAST_RETURN_IF_ERROR(CheckDigest(prepare, seal));
  HOLDFAST_ASSIGN_OR_RETURN(uint32_t slot,
                            LeaseSlot(tools, slots, prepare.identity, seal.image_bytes));
  FillingSlot filling(slots, slot);
  const std::span<std::byte> image = filling.memory().first(seal.image_bytes);
  for (uint64_t chunk = 0; chunk < seal.chunk_crcs.size(); ++chunk) {
    const uint64_t at = chunk * kChunkBytes;
    const Status status =
        reader.CopyChunk(chunk, image.subspan(at, std::min(kChunkBytes, image.size() - at)));
    if (status.code() == ErrorCode::kDataLoss) {
      tools.damage.OnDamaged(prepare.identity.key(), Tier::kMemory, status);
    }
    HOLDFAST_RETURN_IF_ERROR(status);
  }
  return SealFilled(tools, slots, prepare, filling, seal);
}

Status RebuildFromGroup(const RestoreTools& tools, RankSlots& slots, const PrepareTask& prepare) {
  std::optional<FillingSlot> filling;
  const auto lease = [&](uint64_t image_bytes) -> Result<std::span<std::byte>> {
    HOLDFAST_ASSIGN_OR_RETURN(uint32_t slot,
                              LeaseSlot(tools, slots, prepare.identity, image_bytes));
    return filling.emplace(slots, slot).memory();
  };
  // Use the good chunks of a damaged replica on disk: they need no decoding, and may be the only
  // ones left.
  auto seal = FillFromDisk(tools, slots, prepare, lease);
  if (!seal && seal.error().code() == ErrorCode::kNotFound && !filling) {
    seal = Decode(tools, slots, prepare, filling);
  }
  if (!seal) return seal.error();
  return SealFilled(tools, slots, prepare, *filling, *std::move(seal));
}

// Writes the shard to disk durably and reports it.
Status Publish(const RestoreTools& tools, std::span<const std::byte> image, const ShardSeal& seal) {
  HOLDFAST_ASSIGN_OR_RETURN(auto writer, tools.volume.CreateShard(seal.identity, image));
  HOLDFAST_RETURN_IF_ERROR(writer->Advance(image.size()));
  HOLDFAST_RETURN_IF_ERROR(writer->Publish(seal));
  tools.link.Report(
      StoredReplica{seal.identity, Tier::kDisk, seal.digest(), seal.image_bytes, "", seal.life});
  return Status::Ok();
}

// Verifies the replica on disk and repairs its bad chunks. NotFound: there is no replica, or it
// cannot be repaired in place.
Status UseShardOnDisk(const RestoreTools& tools, RankSlots* slots, const PrepareTask& prepare) {
  const ShardKey key = prepare.identity.key();
  HOLDFAST_ASSIGN_OR_RETURN(const ShardSeal stored, tools.volume.ReadSeal(key));
  Status status = CheckDigest(prepare, stored);
  const bool wrong_digest = !status.ok();
  if (status.ok()) status = tools.volume.VerifyShard(key, /*deep=*/true);
  if (status.ok()) {
    tools.damage.OnVerified(stored.identity, Tier::kDisk, stored);
    return status;
  }
  if (status.code() != ErrorCode::kDataLoss && status.code() != ErrorCode::kIoError) return status;
  ReportBadOnDisk(tools, key, status, wrong_digest);
  if (!tools.volume.ReadSeal(key)) return NotFoundError(status.message());
  Status repaired = RepairOnDisk(tools, slots, prepare);
  // A later directive may find more good chunks. The replica counts as lost only after IoError,
  // when it cannot be repaired in place.
  if (repaired.code() != ErrorCode::kIoError) return repaired;
  tools.damage.OnLost(key, Tier::kDisk, repaired);
  return NotFoundError(repaired.message());
}

// Writes the shard from memory to disk. NotFound: memory has no good replica.
Status PublishFromMemory(const RestoreTools& tools, RankSlots& slots, const PrepareTask& prepare) {
  const ShardKey key = prepare.identity.key();
  HOLDFAST_ASSIGN_OR_RETURN(const uint32_t slot, slots.pins().Pin(key.version));
  const auto publish = [&]() -> Status {
    HOLDFAST_ASSIGN_OR_RETURN(const ShardSeal seal, slots.segment().seal(slot));
    Status status = CheckDigest(prepare, seal);
    if (!status.ok()) {
      tools.damage.OnLost(key, Tier::kMemory, status);
      return NotFoundError(status.message());
    }
    status = VerifySlot(slots.segment(), slot);
    if (!status.ok()) {
      tools.damage.OnDamaged(key, Tier::kMemory, status);
      return NotFoundError(status.message());
    }
    return Publish(tools, slots.segment().slot(slot).first(seal.image_bytes), seal);
  };
  Status status = publish();
  slots.pins().Unpin(slot);
  return status;
}

}  // namespace

Status VerifySlot(Segment& segment, uint32_t slot) {
  HOLDFAST_ASSIGN_OR_RETURN(const ShardSeal seal, segment.seal(slot));
  const uint64_t bad = FirstBadChunkOf(segment.slot(slot).first(seal.image_bytes), seal.chunk_crcs);
  if (bad == kNoChunk) return Status::Ok();
  return Status(ErrorCode::kDataLoss,
                fmt::format("{} in memory (slot {}): chunk {} does not match its checksum",
                            ToString(seal.identity.key()), slot, bad));
}

Status BringIntoMemory(const RestoreTools& tools, RankSlots& slots, const PrepareTask& prepare) {
  if (std::optional<Status> done = UseSlotInMemory(tools, slots, prepare)) return *done;
  if (prepare.tier == Tier::kPeer) return RebuildFromGroup(tools, slots, prepare);
  if (prepare.source_node != tools.node) return ReadFromNode(tools, slots, prepare);
  if (prepare.tier == Tier::kDisk) return ReadFromDisk(tools, slots, prepare);
  if (auto reader = tools.memory.Open(prepare.identity.key())) {
    return ReadFromMemory(tools, slots, prepare, **reader);
  }
  tools.link.Report(RemovedReplica{prepare.identity.key(), Tier::kMemory});
  return Status(ErrorCode::kDataLoss, fmt::format("{} is no longer in this node's memory",
                                                  ToString(prepare.identity.key())));
}

Status BringToDisk(const RestoreTools& tools, RankSlots* slots, const PrepareTask& prepare) {
  Status status = UseShardOnDisk(tools, slots, prepare);
  if (status.code() != ErrorCode::kNotFound) return status;
  if (slots != nullptr) {
    status = PublishFromMemory(tools, *slots, prepare);
    if (status.code() != ErrorCode::kNotFound) return status;
  }
  return RebuildOnDisk(tools, prepare);
}

}  // namespace holdfast::agent
