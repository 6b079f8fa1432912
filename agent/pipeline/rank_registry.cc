#include "agent/pipeline/rank_registry.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"

namespace holdfast::agent {

RankRegistry::RankRegistry(const RankOptions& options, Arena& arena, Volume& volume,
                           ChecksumPool& checksums, Clock& clock)
    : options_(options),
      arena_(arena),
      volume_(volume),
      checksums_(checksums),
      clock_(clock),
      life_(options.seen_life.life),
      unlabeled_(options.seen_life.unlabeled) {}

RankRegistry::~RankRegistry() { Clear(); }

RankLease RankRegistry::Add(Segment& segment) {
  volume_.RegisterMemory(segment.memory());
  auto rank =
      std::make_shared<RankPipeline>(segment, options_.disk_every_steps, options_.peer_every_steps,
                                     peer_versions_, volume_, checksums_, *events_, clock_);
  MutexLock lock(mutex_);
  rank->slots.SetLife(life_, unlabeled_);
  if (auto job = jobs_.find(segment.owner().job); job != jobs_.end()) {
    rank->slots.SetJobState(job->second);
  }
  if (arena_.IsRetained(&segment)) {
    retained_.push_back(rank);
  } else {
    ranks_[{segment.owner().job, segment.owner().rank}] = rank;
  }
  return RankLease(std::move(rank));
}

RankLease RankRegistry::Find(const std::string& job, Rank rank) {
  MutexLock lock(mutex_);
  auto found = ranks_.find({job, rank});
  return RankLease(found == ranks_.end() ? nullptr : found->second);
}

RankLease RankRegistry::FindHolder(const ShardKey& key) {
  MutexLock lock(mutex_);
  auto found = ranks_.find({key.job, key.rank});
  if (found != ranks_.end() && found->second->slots.view().Has(key.version)) {
    return RankLease(found->second);
  }
  for (const auto& former : retained_) {
    const SegmentOwner& owner = former->segment.owner();
    if (owner.job == key.job && owner.rank == key.rank && former->slots.view().Has(key.version)) {
      return RankLease(former);
    }
  }
  return RankLease(found == ranks_.end() ? nullptr : found->second);
}

std::vector<RankLease> RankRegistry::Select(const std::string* job) {
  MutexLock lock(mutex_);
  std::vector<RankLease> selected;
  for (const auto& [key, rank] : ranks_) {
    if (job == nullptr || key.first == *job) selected.push_back(RankLease(rank));
  }
  for (const auto& rank : retained_) {
    if (job == nullptr || rank->segment.owner().job == *job) selected.push_back(RankLease(rank));
  }
  return selected;
}

void RankRegistry::ForEach(const std::function<void(RankPipeline&)>& visit) {
  MutexLock lock(mutex_);
  for (const auto& [key, rank] : ranks_) visit(*rank);
  for (const auto& rank : retained_) visit(*rank);
}

bool RankRegistry::HasMemoryOf(const std::string& job) {
  bool found = false;
  ForEach([&](RankPipeline& rank) { found = found || rank.segment.owner().job == job; });
  return found;
}

std::vector<RankLease> RankRegistry::All() { return Select(nullptr); }

std::vector<RankLease> RankRegistry::OfJob(const std::string& job) { return Select(&job); }

std::vector<RankLease> RankRegistry::Retained() {
  MutexLock lock(mutex_);
  std::vector<RankLease> retained;
  for (const auto& rank : retained_) retained.push_back(RankLease(rank));
  return retained;
}

bool RankRegistry::HasRetained() {
  MutexLock lock(mutex_);
  return !retained_.empty();
}

std::vector<RankLease> RankRegistry::Idle(const std::string& job, uint32_t world) {
  MutexLock lock(mutex_);
  std::vector<RankLease> idle;
  for (const auto& [key, rank] : ranks_) {
    const bool over =
        key.first != job || (world != 0 && !IsParity(key.second) && key.second.value >= world);
    if (over && !rank->connected.load()) idle.push_back(RankLease(rank));
  }
  for (const auto& rank : retained_) idle.push_back(RankLease(rank));
  return idle;
}

Result<std::vector<VersionId>> RankRegistry::Remove(const RankLease& rank, bool on_disk_too) {
  const SegmentOwner& owner = rank->segment.owner();
  std::vector<VersionId> freed;
  {
    MutexLock lock(mutex_);
    if (!rank.IsOnly()) {
      return Fail(UnavailableError(fmt::format("the memory of {} of {} is in use; try again",
                                               ShardName(owner.rank), owner.job)));
    }
    HOLDFAST_ASSIGN_OR_RETURN(freed, rank->slots.Vacate(on_disk_too));
    auto current = ranks_.find({owner.job, owner.rank});
    if (current != ranks_.end() && current->second == rank.rank_) {
      ranks_.erase(current);
    } else {
      std::erase(retained_, rank.rank_);
    }
  }
  volume_.UnregisterMemory(rank->segment.memory());
  return freed;
}

Status RankRegistry::Retain(const RankLease& rank) {
  const SegmentOwner& owner = rank->segment.owner();
  MutexLock lock(mutex_);
  HOLDFAST_RETURN_IF_ERROR(arena_.RetainSegment(&rank->segment));
  rank->connected.store(false);
  retained_.push_back(rank.rank_);
  ranks_.erase({owner.job, owner.rank});
  Log(LogLevel::kInfo, "SegmentRetained",
      {Kv("job", owner.job), Kv("rank", owner.rank.value),
       Kv("bytes", rank->segment.memory().size())});
  return Status::Ok();
}

void RankRegistry::Reinstate(const RankLease& rank) {
  const SegmentOwner& owner = rank->segment.owner();
  MutexLock lock(mutex_);
  const bool retained =
      std::find(retained_.begin(), retained_.end(), rank.rank_) != retained_.end();
  if (!retained || !arena_.ReinstateSegment(&rank->segment).ok()) return;
  std::erase(retained_, rank.rank_);
  ranks_[{owner.job, owner.rank}] = rank.rank_;
}

void RankRegistry::SetJobState(const JobState& job) {
  MutexLock lock(mutex_);
  jobs_.insert_or_assign(job.job, job);
  const auto set = [&job](RankPipeline& rank) {
    if (rank.segment.owner().job == job.job) rank.slots.SetJobState(job);
  };
  for (const auto& [key, rank] : ranks_) set(*rank);
  for (const auto& rank : retained_) set(*rank);
}

void RankRegistry::ForgetJobState(const std::string& job) {
  MutexLock lock(mutex_);
  jobs_.erase(job);
}

void RankRegistry::ForgetJobStates() {
  MutexLock lock(mutex_);
  jobs_.clear();
  for (const auto& [key, rank] : ranks_) rank->slots.ForgetJobState();
  for (const auto& rank : retained_) rank->slots.ForgetJobState();
}

LifeId RankRegistry::SetLife(LifeId life, LifeId unlabeled) {
  MutexLock lock(mutex_);
  const LifeId before = std::exchange(life_, life);
  unlabeled_ = unlabeled;
  for (const auto& [key, rank] : ranks_) rank->slots.SetLife(life, unlabeled);
  for (const auto& rank : retained_) rank->slots.SetLife(life, unlabeled);
  return before;
}

void RankRegistry::NotifySlotsChanged(const std::string& job, Rank rank) {
  events_->OnSlotsChanged(job, rank);
}

void RankRegistry::Clear() {
  std::vector<RankLease> all = All();
  {
    MutexLock lock(mutex_);
    ranks_.clear();
    retained_.clear();
  }
  for (const RankLease& rank : all) volume_.UnregisterMemory(rank->segment.memory());
}

}  // namespace holdfast::agent
