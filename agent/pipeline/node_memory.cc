#include <fmt/format.h>

#include <algorithm>

#include "agent/pipeline/node.h"
#include "storage/base/config.h"
#include "storage/base/log.h"

// Assigns memory to ranks. A rank gets memory when its trainer connects; memory of finished ranks
// and jobs is reassigned. A segment that is too small for its rank, but has shards that are still
// needed, becomes a retained segment.

namespace holdfast::agent {

Result<Segment*> Node::FromArena(const SegmentOwner& owner, uint32_t slots, uint64_t slot_bytes) {
  if (options_.before_reserve) options_.before_reserve(owner);
  return arena_.Reserve(owner, slots, slot_bytes);
}

Result<Segment*> Node::Reserve(const SegmentOwner& owner, uint32_t slots, uint64_t slot_bytes,
                               uint32_t world) {
  const RankKey key{owner.job, owner.rank};
  {
    MutexLock lock(reserve_mutex_);
    while (reserving_.contains(key)) reserved_.Wait(reserve_mutex_);
    reserving_.insert(key);
  }
  Result<Segment*> segment = ReserveInTurn(owner, slots, slot_bytes, world);
  MutexLock lock(reserve_mutex_);
  reserving_.erase(key);
  reserved_.NotifyAll();
  return segment;
}

Result<Segment*> Node::ReserveInTurn(const SegmentOwner& owner, uint32_t slots, uint64_t slot_bytes,
                                     uint32_t world) {
  std::shared_ptr<RankPipeline> too_small;
  {
    MutexLock lock(reserve_mutex_);
    if (std::shared_ptr<RankPipeline> rank = FindRank(owner.job, owner.rank)) {
      if (rank->segment.slot_count() >= slots && rank->segment.slot_bytes() >= slot_bytes) {
        return &rank->segment;
      }
      // A start with fewer ranks has larger shards, which it reads from the shards in this memory.
      if (!Retire(rank, /*on_disk_too=*/false).ok()) {
        HOLDFAST_RETURN_IF_ERROR(RetainSegment(rank));
        too_small = std::move(rank);
      }
    }
  }
  // Reserve without the lock: large memory takes minutes, and ranks reserve in parallel.
  Result<Segment*> segment = FromArena(owner, slots, slot_bytes);
  const auto full = [&] {
    return !segment && segment.error().code() == ErrorCode::kResourceExhausted;
  };
  MutexLock lock(reserve_mutex_);
  // Reassign memory of ranks and jobs that have ended and whose versions are safe on disk.
  std::vector<std::shared_ptr<RankPipeline>> idle;
  if (full()) idle = IdleRanks(owner.job, world);
  while (full() && !idle.empty()) {
    std::shared_ptr<RankPipeline> rank = std::move(idle.back());
    idle.pop_back();
    Segment* memory = &rank->segment;
    const SegmentOwner old = memory->owner();
    if (!Retire(rank, /*on_disk_too=*/true).ok()) continue;
    rank.reset();
    Log(LogLevel::kInfo, "IdleMemoryReassigned",
        {Kv("from", old.job), Kv("from_shard", ShardName(old.rank)), Kv("to", owner.job)});
    HOLDFAST_RETURN_IF_ERROR(arena_.Release(memory));
    segment = FromArena(owner, slots, slot_bytes);
  }
  if (segment) {
    MakeRank(**segment);
  } else if (too_small != nullptr) {
    TakeBack(too_small);  // a later start with smaller slots can use it
  }
  return segment;
}

void Node::TakeBack(const std::shared_ptr<RankPipeline>& rank) {
  const SegmentOwner& owner = rank->segment.owner();
  MutexLock lock(ranks_mutex_);
  const bool retained = std::find(retained_.begin(), retained_.end(), rank) != retained_.end();
  if (!retained || !arena_.ReinstateSegment(&rank->segment).ok()) return;
  std::erase(retained_, rank);
  ranks_[{owner.job, owner.rank}] = rank;
}

std::vector<std::shared_ptr<RankPipeline>> Node::IdleRanks(const std::string& job, uint32_t world) {
  std::vector<std::shared_ptr<RankPipeline>> idle;
  MutexLock lock(ranks_mutex_);
  for (const auto& [key, rank] : ranks_) {
    const bool over =
        key.first != job || (world != 0 && !IsParity(key.second) && key.second.value >= world);
    if (over && !rank->connected.load()) idle.push_back(rank);
  }
  idle.insert(idle.end(), retained_.begin(), retained_.end());
  return idle;
}

Status Node::Retire(const std::shared_ptr<RankPipeline>& rank, bool on_disk_too) {
  const SegmentOwner owner = rank->segment.owner();
  std::vector<VersionId> freed;
  {
    MutexLock lock(ranks_mutex_);
    // Two references are the map's and the caller's. More mean that a reader or a restore uses it.
    if (rank.use_count() > 2) {
      return UnavailableError(fmt::format("the memory of {} of {} is in use; try again",
                                          ShardName(owner.rank), owner.job));
    }
    HOLDFAST_ASSIGN_OR_RETURN(freed, rank->slots.Vacate(on_disk_too));
    auto current = ranks_.find({owner.job, owner.rank});
    if (current != ranks_.end() && current->second == rank) {
      ranks_.erase(current);
    } else {
      std::erase(retained_, rank);
    }
  }
  for (VersionId version : freed) {
    const ShardKey key{owner.job, version, owner.rank};
    // Another segment of the rank may have the version as well.
    const std::shared_ptr<RankPipeline> holder = FindHolder(key);
    if (holder == nullptr || !holder->slots.Has(version)) {
      link_.Report(RemovedReplica{key, Tier::kMemory});
    }
  }
  volume_.UnregisterMemory(rank->segment.memory());
  return Status::Ok();
}

Status Node::RetainSegment(const std::shared_ptr<RankPipeline>& rank) {
  const SegmentOwner& owner = rank->segment.owner();
  MutexLock lock(ranks_mutex_);
  HOLDFAST_RETURN_IF_ERROR(arena_.RetainSegment(&rank->segment));
  rank->connected.store(false);
  retained_.push_back(rank);
  ranks_.erase({owner.job, owner.rank});
  Log(LogLevel::kInfo, "SegmentRetained",
      {Kv("job", owner.job), Kv("rank", owner.rank.value),
       Kv("bytes", rank->segment.memory().size())});
  return Status::Ok();
}

/// Frees retained segments of which no shard is needed any more. Called on the loop thread; a
/// worker frees the memory, since that takes time.
void Node::ReleaseRetained() {
  {
    MutexLock lock(ranks_mutex_);
    if (retained_.empty() || releasing_.exchange(true)) return;
  }
  const bool posted = workers_.Post([this] {
    std::vector<std::shared_ptr<RankPipeline>> all;
    {
      MutexLock lock(ranks_mutex_);
      all = retained_;
    }
    while (!all.empty()) {
      std::shared_ptr<RankPipeline> rank = std::move(all.back());
      all.pop_back();
      Segment* memory = &rank->segment;
      if (!Retire(rank, /*on_disk_too=*/false).ok()) continue;
      rank.reset();
      if (Status status = arena_.Release(memory); !status.ok()) {
        Log(LogLevel::kWarn, "MemoryNotReleased", {Kv("error", status.ToString())});
      }
    }
    releasing_.store(false);
  });
  if (!posted) releasing_.store(false);
}

}  // namespace holdfast::agent
