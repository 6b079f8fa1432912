#include "agent/pipeline/report_queue.h"

#include <algorithm>
#include <iterator>

namespace holdfast::agent {
void ReportQueue::ForgetPending(const Place& place) {
  std::erase(pending_replicas_, place);
  std::erase_if(removed_, [&](const RemovedReplica& removed) {
    return removed.key == place.first && removed.tier == place.second;
  });
}

void ReportQueue::AddPending(const Place& place) {
  ForgetPending(place);
  pending_replicas_.push_back(place);
}

void ReportQueue::AddFailure(FailedReplica failed) {
  const VersionId version = failed.key.version;
  auto& of_rank = failed_[{failed.key.job, failed.key.rank, failed.tier}];
  of_rank.try_emplace(version, std::move(failed));
  if (of_rank.size() > kFailuresMax) of_rank.erase(std::next(of_rank.begin(), kFailuresMax / 2));
}

void ReportQueue::AddWanted(TierWanted wanted) {
  auto [found, added] = wanted_.try_emplace({wanted.job, wanted.tier}, wanted);
  if (!added && found->second.version < wanted.version) found->second = std::move(wanted);
}

void ReportQueue::BoundRemovals() {
  const auto in_inventory = [](const RemovedReplica& one) { return !IsShared(one.tier); };
  const auto count = std::count_if(removed_.begin(), removed_.end(), in_inventory);
  if (static_cast<size_t>(count) <= kRemovalsMax) return;
  std::erase_if(removed_, in_inventory);
  needs_attach_ = true;
}

bool ReportQueue::NeedsAttach() {
  MutexLock lock(mutex_);
  return needs_attach_;
}

void ReportQueue::Add(StoredReplica report) {
  MutexLock lock(mutex_);
  Place place{report.identity.key(), report.tier};
  AddPending(place);
  held_.insert_or_assign(std::move(place), std::move(report));
  changed_.NotifyAll();
}

void ReportQueue::Add(FailedReplica failed) {
  MutexLock lock(mutex_);
  AddFailure(std::move(failed));
  changed_.NotifyAll();
}

void ReportQueue::Add(RemovedReplica removed) {
  MutexLock lock(mutex_);
  Place place{removed.key, removed.tier};
  ForgetPending(place);
  held_.erase(place);
  removed_.push_back(std::move(removed));
  BoundRemovals();
  changed_.NotifyAll();
}

void ReportQueue::Add(Prepared prepared) {
  MutexLock lock(mutex_);
  const uint64_t request = prepared.request;
  prepared_.insert_or_assign(request, std::move(prepared));
  changed_.NotifyAll();
}

void ReportQueue::SetWarnings(std::vector<std::string> warnings) {
  MutexLock lock(mutex_);
  if (warnings == warnings_) return;
  warnings_ = std::move(warnings);
  urgent_ = true;
  changed_.NotifyAll();
}

void ReportQueue::SetCommits(std::vector<VersionCommit> commits) {
  MutexLock lock(mutex_);
  commits_ = std::move(commits);
}

void ReportQueue::SetRanks(std::vector<LocalRank> ranks) {
  MutexLock lock(mutex_);
  if (ranks == ranks_) return;
  ranks_ = std::move(ranks);
  urgent_ = true;
  changed_.NotifyAll();
}

void ReportQueue::Add(TierWanted wanted) {
  MutexLock lock(mutex_);
  AddWanted(std::move(wanted));
  changed_.NotifyAll();
}

bool ReportQueue::HasPending() const {
  return urgent_ || !wanted_.empty() || !pending_replicas_.empty() || !failed_.empty() ||
         !removed_.empty() || !prepared_.empty();
}

bool ReportQueue::AwaitPending(int timeout_ms) {
  MutexLock lock(mutex_);
  if (!HasPending()) changed_.WaitFor(mutex_, std::chrono::milliseconds(timeout_ms));
  const bool pending = HasPending();
  urgent_ = false;
  return pending;
}

void ReportQueue::Wake() {
  MutexLock lock(mutex_);
  urgent_ = true;
  changed_.NotifyAll();
}

ReportBatch ReportQueue::Take() {
  MutexLock lock(mutex_);
  ReportBatch batch;
  for (const Place& place : pending_replicas_) {
    batch.replicas.push_back(held_.at(place));
    // The replicas of a shared tier are not in the inventory: the coordinator's records name them,
    // and another node may remove them.
    if (IsShared(place.second)) held_.erase(place);
  }
  for (auto& [rank, failures] : failed_) {
    for (auto& [version, failed] : failures) batch.failed.push_back(std::move(failed));
  }
  std::stable_sort(
      batch.failed.begin(), batch.failed.end(),
      [](const FailedReplica& a, const FailedReplica& b) { return a.key.version < b.key.version; });
  batch.removed.assign(removed_.begin(), removed_.end());
  for (auto& [request, prepared] : prepared_) batch.prepared.push_back(std::move(prepared));
  for (auto& [key, wanted] : wanted_) batch.wanted.push_back(std::move(wanted));
  batch.warnings = warnings_;
  batch.ranks = ranks_;
  wanted_.clear();
  pending_replicas_.clear();
  failed_.clear();
  removed_.clear();
  prepared_.clear();
  return batch;
}

void ReportQueue::Return(ReportBatch batch) {
  MutexLock lock(mutex_);
  for (const StoredReplica& report : batch.replicas) {
    Place place{report.identity.key(), report.tier};
    const bool pending = std::find(pending_replicas_.begin(), pending_replicas_.end(), place) !=
                         pending_replicas_.end();
    if (IsShared(place.second)) held_.try_emplace(place, report);
    if (held_.contains(place) && !pending) pending_replicas_.push_front(std::move(place));
  }
  for (RemovedReplica& removed : batch.removed) {
    if (!held_.contains({removed.key, removed.tier})) removed_.push_front(std::move(removed));
  }
  for (FailedReplica& failed : batch.failed) AddFailure(std::move(failed));
  for (Prepared& prepared : batch.prepared) {
    const uint64_t request = prepared.request;
    prepared_.try_emplace(request, std::move(prepared));
  }
  for (TierWanted& wanted : batch.wanted) AddWanted(std::move(wanted));
  BoundRemovals();
}

ReportBatch ReportQueue::Inventory() {
  MutexLock lock(mutex_);
  ReportBatch batch;
  batch.replicas.reserve(held_.size());
  for (const auto& [place, report] : held_) batch.replicas.push_back(report);
  std::erase_if(held_, [](const auto& entry) { return IsShared(entry.first.second); });
  batch.warnings = warnings_;
  batch.ranks = ranks_;
  batch.commits = commits_;
  pending_replicas_.clear();
  removed_.clear();
  needs_attach_ = false;
  return batch;
}

}  // namespace holdfast::agent
