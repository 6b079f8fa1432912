#include "agent/pipeline/restore.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "agent/chunks/decoded_chunks.h"
#include "agent/chunks/peer_chunks.h"
#include "agent/parity/rebuild.h"
#include "agent/pipeline/chunk_repair.h"
#include "agent/pipeline/disk_rebuild.h"
#include "agent/pipeline/sealer.h"
#include "base/crash_point.h"
#include "base/log.h"
#include "base/thread.h"
#include "base/tiers.h"
#include "storage/format/chunk.h"
#include "storage/format/image.h"
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
    status = CheckDigest(*seal, prepare.digest);
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
  std::vector<Thread> checkers;
  for (uint64_t part = 1; part < bad.size(); ++part) checkers.emplace_back(check, part);
  check(0);
  for (Thread& checker : checkers) checker.join();
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

/// Returns the sources that the directive allows.
Result<SourceList> SourcesOf(const RestoreTools& tools, const PrepareTask& prepare) {
  const ShardKey key = prepare.identity.key();
  SourceList sources;
  if (prepare.tier == Tier::kPeer) {
    if (!prepare.group) {
      return Fail(
          InvalidArgumentError("the directive for " + ToString(key) + " names no parity group"));
    }
    // Good chunks of a damaged replica on disk need no decoding, and may be the only ones left.
    sources.push_back(tools.local.Source(key, Tier::kDisk));
    sources.push_back(std::make_unique<DecodedChunks>(
        tools.reach, std::make_shared<GroupPlan>(*prepare.group), key, prepare.current));
  } else if (!IsShared(prepare.tier) && prepare.source_node != tools.node()) {
    sources.push_back(std::make_unique<PeerChunks>(
        tools.reach.transport, tools.clock,
        PeerPlace{prepare.source_node, prepare.source_peer_address, prepare.tier}, key,
        prepare.current));
  } else {
    sources.push_back(tools.local.Source(key, prepare.tier));
  }
  return sources;
}

void LogDecoded(const ShardSeal& seal) {
  Log(LogLevel::kInfo, "ShardDecoded",
      {Kv("shard", ToString(seal.identity.key())), Kv("bytes", seal.image_bytes)});
}

/// Reads the shard from the sources into a leased slot.
Status ReadIntoSlot(const RestoreTools& tools, RankSlots& slots, const PrepareTask& prepare) {
  const ShardIdentity& identity = prepare.identity;
  HOLDFAST_ASSIGN_OR_RETURN(const SourceList sources, SourcesOf(tools, prepare));
  SourceSelector selector(identity.key(), prepare.digest, sources, tools.damage);
  selector.SetStopping([&tools] { return tools.stopping(); });
  HOLDFAST_ASSIGN_OR_RETURN(const ShardSeal seal, selector.ReadSeal());
  if (seal.identity != identity) {
    return DataLossError(fmt::format("the seal of {} is of a world of {}, not {}",
                                     ToString(identity.key()), seal.identity.world,
                                     identity.world));
  }
  HOLDFAST_ASSIGN_OR_RETURN(uint32_t slot, LeaseSlot(tools, slots, identity, seal.image_bytes));
  FillingSlot filling(slots, slot);
  const uint64_t slack = RoundUp(seal.image_bytes, kBlockBytes) - seal.image_bytes;
  std::vector<WantedChunk> chunks =
      ChunksOf(seal, 0, filling.memory().first(seal.image_bytes), slack);
  HOLDFAST_RETURN_IF_ERROR(selector.Read(seal, chunks));
  if (prepare.tier == Tier::kPeer) LogDecoded(seal);
  return SealFilled(tools, slots, prepare, filling, seal);
}

/// Has the group rebuild a parity shard in a leased slot. Its seal follows from the bytes, so that
/// it cannot be read chunk by chunk.
Status RebuildParityInSlot(const RestoreTools& tools, RankSlots& slots,
                           const PrepareTask& prepare) {
  const ShardIdentity& identity = prepare.identity;
  const auto position = prepare.group->PositionOf(tools.node());
  if (!position) {
    return InvalidArgumentError("node " + tools.node() + " is not in the parity group");
  }
  HOLDFAST_ASSIGN_OR_RETURN(const ParityImage image,
                            ParityImage::Make(*prepare.group, *position, identity));
  HOLDFAST_ASSIGN_OR_RETURN(uint32_t slot, LeaseSlot(tools, slots, identity, image.image_bytes()));
  FillingSlot filling(slots, slot);
  Cancellation cancellation;
  const GroupAccess access =
      tools.reach.To(*prepare.group, identity.job, identity.version, prepare.current, cancellation);
  HOLDFAST_ASSIGN_OR_RETURN(const ShardSeal seal,
                            RebuildParity(
                                access, *position, identity.world, filling.memory(),
                                [](uint64_t) { HOLDFAST_CRASH_POINT("agent.mid_restore"); },
                                tools.clock, tools.clock.Now() + kRebuildTime));
  HOLDFAST_RETURN_IF_ERROR(CheckDigest(seal, prepare.digest));
  LogDecoded(seal);
  return SealFilled(tools, slots, prepare, filling, seal);
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

// Verifies the replica on disk and repairs its bad chunks. NotFound: there is no replica, or it
// cannot be repaired in place.
Status UseShardOnDisk(const RestoreTools& tools, const PrepareTask& prepare) {
  const ShardKey key = prepare.identity.key();
  HOLDFAST_ASSIGN_OR_RETURN(const ShardSeal stored, tools.volume.ReadSeal(key));
  Status status = CheckDigest(stored, prepare.digest);
  const bool wrong_digest = !status.ok();
  if (status.ok()) status = tools.volume.VerifyShard(key, /*deep=*/true);
  if (status.ok()) {
    tools.damage.OnVerified(stored.identity, Tier::kDisk, stored);
    return status;
  }
  if (status.code() != ErrorCode::kDataLoss && status.code() != ErrorCode::kIoError) return status;
  ReportBadOnDisk(tools, key, status, wrong_digest);
  if (!tools.volume.ReadSeal(key)) return NotFoundError(status.message());
  Status repaired = RepairOnDisk(tools, prepare);
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
    Status status = CheckDigest(seal, prepare.digest);
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
  return BadChunkError(seal, bad, fmt::format("in this node's memory (slot {})", slot));
}

Status BringIntoMemory(const RestoreTools& tools, RankSlots& slots, const PrepareTask& prepare) {
  if (std::optional<Status> done = UseSlotInMemory(tools, slots, prepare)) return *done;
  const ShardKey key = prepare.identity.key();
  const bool decode = prepare.tier == Tier::kPeer;
  if (decode && IsParity(key.rank) && prepare.group && !tools.volume.ReadSeal(key)) {
    return RebuildParityInSlot(tools, slots, prepare);
  }
  const Status status = ReadIntoSlot(tools, slots, prepare);
  const bool from_here = !decode && (IsShared(prepare.tier) || prepare.source_node == tools.node());
  if (!from_here || status.code() != ErrorCode::kNotFound) return status;
  tools.link.Report(RemovedReplica{key, prepare.tier});
  return DataLossError(status.message());
}

Status BringToDisk(const RestoreTools& tools, RankSlots* slots, const PrepareTask& prepare) {
  Status status = UseShardOnDisk(tools, prepare);
  if (status.code() != ErrorCode::kNotFound) return status;
  if (slots != nullptr) {
    status = PublishFromMemory(tools, *slots, prepare);
    if (status.code() != ErrorCode::kNotFound) return status;
  }
  return RebuildOnDisk(tools, prepare);
}

}  // namespace holdfast::agent
