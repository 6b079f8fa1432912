#include "agent/pipeline/rank_memory.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "base/log.h"

namespace holdfast::agent {
namespace {
constexpr uint32_t kParitySlots = 2;  // the committed version and the one being built
// A start waits this long for the memory of ended jobs whose newest version goes to disk.
constexpr std::chrono::milliseconds kReleaseInterval(100);
constexpr int kReleaseTries = 100;
}  // namespace

RankMemory::RankMemory(RankRegistry& ranks, Arena& arena, CoordinatorLink& link,
                       std::function<void(const SegmentOwner&)> before_reserve)
    : ranks_(ranks), arena_(arena), link_(link), before_reserve_(std::move(before_reserve)) {}

Result<Segment*> RankMemory::FromArena(const SegmentOwner& owner, uint32_t slots,
                                       uint64_t slot_bytes) {
  if (before_reserve_) before_reserve_(owner);
  return arena_.Reserve(owner, slots, slot_bytes);
}

Result<RankLease> RankMemory::Reserve(const SegmentOwner& owner, uint32_t slots,
                                      uint64_t slot_bytes, uint32_t world) {
  const RankKey key{owner.job, owner.rank};
  {
    MutexLock lock(mutex_);
    while (reserving_.contains(key)) reserved_.Wait(mutex_);
    reserving_.insert(key);
  }
  Result<RankLease> rank = ReserveInTurn(owner, slots, slot_bytes, world);
  MutexLock lock(mutex_);
  reserving_.erase(key);
  reserved_.NotifyAll();
  return rank;
}

Result<RankLease> RankMemory::ReserveInTurn(const SegmentOwner& owner, uint32_t slots,
                                            uint64_t slot_bytes, uint32_t world) {
  RankLease too_small;
  {
    MutexLock lock(mutex_);
    if (RankLease rank = ranks_.Find(owner.job, owner.rank)) {
      if (rank->segment.slot_count() >= slots && rank->segment.slot_bytes() >= slot_bytes) {
        return rank;
      }
      // The shards in this memory may still be needed. A start with fewer ranks, for example, needs
      // larger slots and restores from these shards.
      if (!Retire(rank, /*on_disk_too=*/false).ok()) {
        HOLDFAST_RETURN_IF_ERROR(ranks_.Retain(rank));
        too_small = std::move(rank);
      }
    }
  }
  // Reserve without the lock, so that ranks reserve in parallel: a large segment takes minutes.
  Result<Segment*> segment = FromArena(owner, slots, slot_bytes);
  const auto full = [&] {
    return !segment && segment.error().code() == ErrorCode::kResourceExhausted;
  };
  MutexLock lock(mutex_);
  // Parity is tried again anyway; only trainers wait.
  const int tries_max = IsParity(owner.rank) ? 1 : kReleaseTries;
  for (int tries = 0; full() && tries < tries_max; ++tries) {
    if (tries > 0) {
      // Ended jobs bring their newest version to disk, and then release their memory.
      reserved_.WaitFor(mutex_, kReleaseInterval);
      segment = FromArena(owner, slots, slot_bytes);
    }
    if (!full() || !ReassignIdle(owner, slots, slot_bytes, world, &segment)) break;
  }
  if (segment) return ranks_.Add(**segment);
  if (too_small) ranks_.Reinstate(too_small);  // a later start with smaller slots can use it
  return Fail(segment.error());
}

bool RankMemory::ReassignIdle(const SegmentOwner& owner, uint32_t slots, uint64_t slot_bytes,
                              uint32_t world, Result<Segment*>* segment) {
  std::vector<RankLease> idle = ranks_.Idle(owner.job, world);
  // Taken from the end: memory of jobs with priority comes last.
  std::stable_partition(idle.begin(), idle.end(), [this](const RankLease& rank) {
    return arena_.HasPriority(rank->segment.owner().job);
  });
  bool more = false;
  while (!*segment && segment->error().code() == ErrorCode::kResourceExhausted && !idle.empty()) {
    RankLease rank = std::move(idle.back());
    idle.pop_back();
    Segment* memory = &rank->segment;
    const SegmentOwner old = memory->owner();
    // Where a limit of some jobs is reached, memory of others does not help.
    const ArenaShortage shortage = arena_.ShortageOf(owner, slots, slot_bytes);
    if (shortage == ArenaShortage::kJob && old.job != owner.job) continue;
    if (shortage == ArenaShortage::kUser && old.uid != owner.uid) continue;
    if (shortage == ArenaShortage::kOrdinary && arena_.HasPriority(old.job)) continue;
    if (!Retire(rank, /*on_disk_too=*/true).ok()) {
      more = true;
      continue;
    }
    rank = RankLease();
    Log(LogLevel::kInfo, "IdleMemoryReassigned",
        {Kv("from", old.job), Kv("from_shard", ShardName(old.rank)), Kv("to", owner.job)});
    if (Status released = arena_.Release(memory); !released.ok()) {
      *segment = Fail(std::move(released));
      return false;
    }
    *segment = FromArena(owner, slots, slot_bytes);
  }
  return more;
}

Result<RankLease> RankMemory::ReserveParity(const std::string& job, Rank parity,
                                            uint64_t slot_bytes) {
  SegmentOwner owner{job, parity, 0};
  ranks_.ForEach([&](RankPipeline& rank) {
    if (rank.segment.owner().job == job) owner.uid = rank.segment.owner().uid;
  });
  HOLDFAST_ASSIGN_OR_RETURN(RankLease rank, Reserve(owner, kParitySlots, slot_bytes, /*world=*/0));
  rank->connected.store(true);
  return rank;
}

Status RankMemory::Retire(const RankLease& rank, bool on_disk_too) {
  const SegmentOwner owner = rank->segment.owner();
  HOLDFAST_ASSIGN_OR_RETURN(const std::vector<VersionId> freed, ranks_.Remove(rank, on_disk_too));
  for (VersionId version : freed) {
    const ShardKey key{owner.job, version, owner.rank};
    // Another segment of the rank may have the version as well.
    const RankLease holder = ranks_.FindHolder(key);
    if (!holder || !holder->slots.view().Has(version)) {
      link_.Report(RemovedReplica{key, Tier::kMemory});
    }
  }
  return Status::Ok();
}

void RankMemory::ReleaseJob(const std::string& job) {
  MutexLock lock(mutex_);
  std::vector<RankLease> all = ranks_.OfJob(job);
  while (!all.empty()) {
    RankLease rank = std::move(all.back());
    all.pop_back();
    Segment* memory = &rank->segment;
    const SegmentOwner owner = memory->owner();
    if (rank->connected.load() || reserving_.contains({owner.job, owner.rank})) continue;
    if (!Retire(rank, /*on_disk_too=*/true).ok()) continue;
    rank = RankLease();
    Log(LogLevel::kInfo, "MemoryReleased",
        {Kv("job", owner.job), Kv("shard", ShardName(owner.rank))});
    if (Status status = arena_.Release(memory); !status.ok()) {
      Log(LogLevel::kWarn, "MemoryNotReleased", {Kv("error", status.ToString())});
    }
  }
}

void RankMemory::ReleaseRetained() {
  std::vector<RankLease> all = ranks_.Retained();
  while (!all.empty()) {
    RankLease rank = std::move(all.back());
    all.pop_back();
    Segment* memory = &rank->segment;
    if (!Retire(rank, /*on_disk_too=*/false).ok()) continue;
    rank = RankLease();
    if (Status status = arena_.Release(memory); !status.ok()) {
      Log(LogLevel::kWarn, "MemoryNotReleased", {Kv("error", status.ToString())});
    }
  }
}

}  // namespace holdfast::agent
