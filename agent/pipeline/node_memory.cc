#include <fmt/format.h>

#include <algorithm>

#include "agent/pipeline/node.h"
#include "storage/base/config.h"
#include "storage/base/log.h"

// Which rank has which memory: given when its trainer connects, taken from who is done with it, and
// set aside where it is too small for a rank and still needed for what it holds.

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

Result<Segment*> Node::ReserveInTurn(const SegmentOwner& owner, uint32_t slots,
                                     uint64_t slot_bytes, uint32_t world) {
  std::shared_ptr<RankPipeline> too_small;
  {
    MutexLock lock(reserve_mutex_);
    if (std::shared_ptr<RankPipeline> rank = FindRank(owner.job, owner.rank)) {
      if (rank->segment.slot_count() >= slots && rank->segment.slot_bytes() >= slot_bytes) {
        return &rank->segment;
      }
      // A start with fewer ranks has larger shards, and gets them from those that lie here.
      if (!Retire(rank, /*on_disk_too=*/false).ok()) {
        HOLDFAST_RETURN_IF_ERROR(SetAside(rank));
        too_small = std::move(rank);
      }
    }
  }
  // Without the lock: large memory takes minutes, and ranks wait for theirs together.
  Result<Segment*> segment = FromArena(owner, slots, slot_bytes);
  const auto full = [&] {
    return !segment && segment.error().code() == ErrorCode::kResourceExhausted;
  };
  MutexLock lock(reserve_mutex_);
  // Ranks and jobs that are over and safe on disk make room.
  std::vector<std::shared_ptr<RankPipeline>> idle;
  if (full()) idle = IdleRanks(owner.job, world);
  while (full() && !idle.empty()) {
    std::shared_ptr<RankPipeline> rank = std::move(idle.back());
    idle.pop_back();
    Segment* memory = &rank->segment;
    const SegmentOwner old = memory->owner();
    if (!Retire(rank, /*on_disk_too=*/true).ok()) continue;
    rank.reset();
    Log(LogLevel::kInfo, "IdleMemoryGiven",
        {Kv("from", old.job), Kv("from_shard", ShardName(old.rank)), Kv("to", owner.job)});
    HOLDFAST_RETURN_IF_ERROR(arena_.Release(memory));
    segment = FromArena(owner, slots, slot_bytes);
  }
  if (segment) {
    MakeRank(**segment);
  } else if (too_small != nullptr) {
    TakeBack(too_small);  // a start that asks for less can use it
  }
  return segment;
}

void Node::TakeBack(const std::shared_ptr<RankPipeline>& rank) {
  const SegmentOwner& owner = rank->segment.owner();
  MutexLock lock(ranks_mutex_);
  const bool there = std::find(set_aside_.begin(), set_aside_.end(), rank) != set_aside_.end();
  if (!there || !arena_.TakeBack(&rank->segment).ok()) return;
  std::erase(set_aside_, rank);
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
  idle.insert(idle.end(), set_aside_.begin(), set_aside_.end());
  return idle;
}

Status Node::Retire(const std::shared_ptr<RankPipeline>& rank, bool on_disk_too) {
  const SegmentOwner owner = rank->segment.owner();
  std::vector<VersionId> freed;
  {
    MutexLock lock(ranks_mutex_);
    // The map and the caller: nobody reads it or is about to bring something into it.
    if (rank.use_count() > 2) return UnavailableError("its memory is in use; try again");
    HOLDFAST_ASSIGN_OR_RETURN(freed, rank->slots.Vacate(on_disk_too));
    auto current = ranks_.find({owner.job, owner.rank});
    if (current != ranks_.end() && current->second == rank) {
      ranks_.erase(current);
    } else {
      std::erase(set_aside_, rank);
    }
  }
  for (VersionId version : freed) {
    const ShardKey key{owner.job, version, owner.rank};
    // Other memory of the rank may have it, too.
    const std::shared_ptr<RankPipeline> holder = FindHolder(key);
    if (holder == nullptr || !holder->slots.Has(version)) link_.Report(Gone{key, Tier::kMemory});
  }
  volume_.UnregisterMemory(rank->segment.memory());
  return Status::Ok();
}

Status Node::SetAside(const std::shared_ptr<RankPipeline>& rank) {
  const SegmentOwner& owner = rank->segment.owner();
  MutexLock lock(ranks_mutex_);
  HOLDFAST_RETURN_IF_ERROR(arena_.SetAside(&rank->segment));
  rank->connected.store(false);
  set_aside_.push_back(rank);
  ranks_.erase({owner.job, owner.rank});
  Log(LogLevel::kInfo, "MemorySetAside",
      {Kv("job", owner.job), Kv("rank", owner.rank.value),
       Kv("bytes", rank->segment.memory().size())});
  return Status::Ok();
}

/// Gives back memory that was set aside once nothing in it is needed. Loop thread; the work, which
/// takes its time, is a worker's.
void Node::ReleaseSetAside() {
  {
    MutexLock lock(ranks_mutex_);
    if (set_aside_.empty() || releasing_.exchange(true)) return;
  }
  const bool posted = workers_.Post([this] {
    std::vector<std::shared_ptr<RankPipeline>> all;
    {
      MutexLock lock(ranks_mutex_);
      all = set_aside_;
    }
    while (!all.empty()) {
      std::shared_ptr<RankPipeline> rank = std::move(all.back());
      all.pop_back();
      Segment* memory = &rank->segment;
      if (!Retire(rank, /*on_disk_too=*/false).ok()) continue;
      rank.reset();
      if (Status status = arena_.Release(memory); !status.ok()) {
        Log(LogLevel::kWarn, "MemoryNotGivenBack", {Kv("error", status.ToString())});
      }
    }
    releasing_.store(false);
  });
  if (!posted) releasing_.store(false);
}

}  // namespace holdfast::agent
