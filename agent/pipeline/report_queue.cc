#include "agent/pipeline/report_queue.h"

#include <algorithm>

namespace holdfast::agent {
namespace {
// Limit of each queue. While the coordinator is away, the oldest entries are dropped. A dropped
// removal loses no state: the inventory at the next attach lacks the replica. Dropped reports of
// the other kinds are not repeated.
constexpr size_t kPendingMax = 4096;

template <typename T>
void Bound(std::deque<T>& queue) {
  while (queue.size() > kPendingMax) queue.pop_front();
}
}  // namespace

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

void ReportQueue::Add(StoredReplica report) {
  MutexLock lock(mutex_);
  Place place{report.identity.key(), report.tier};
  AddPending(place);
  held_.insert_or_assign(std::move(place), std::move(report));
  changed_.NotifyAll();
}

void ReportQueue::Add(FailedReplica failed) {
  MutexLock lock(mutex_);
  failed_.push_back(std::move(failed));
  Bound(failed_);
  changed_.NotifyAll();
}

void ReportQueue::Add(RemovedReplica removed) {
  MutexLock lock(mutex_);
  Place place{removed.key, removed.tier};
  ForgetPending(place);
  held_.erase(place);
  removed_.push_back(std::move(removed));
  Bound(removed_);
  changed_.NotifyAll();
}

void ReportQueue::Add(Prepared prepared) {
  MutexLock lock(mutex_);
  prepared_.push_back(std::move(prepared));
  Bound(prepared_);
  changed_.NotifyAll();
}

void ReportQueue::SetWarnings(std::vector<std::string> warnings) {
  MutexLock lock(mutex_);
  if (warnings == warnings_) return;
  warnings_ = std::move(warnings);
  urgent_ = true;
  changed_.NotifyAll();
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
  wanted_.push_back(std::move(wanted));
  Bound(wanted_);
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
  batch.failed.assign(failed_.begin(), failed_.end());
  batch.removed.assign(removed_.begin(), removed_.end());
  batch.prepared.assign(prepared_.begin(), prepared_.end());
  batch.wanted.assign(wanted_.begin(), wanted_.end());
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
  failed_.insert(failed_.begin(), std::make_move_iterator(batch.failed.begin()),
                 std::make_move_iterator(batch.failed.end()));
  prepared_.insert(prepared_.begin(), std::make_move_iterator(batch.prepared.begin()),
                   std::make_move_iterator(batch.prepared.end()));
  wanted_.insert(wanted_.begin(), batch.wanted.begin(), batch.wanted.end());
  Bound(failed_);
  Bound(removed_);
  Bound(prepared_);
  Bound(wanted_);
}

ReportBatch ReportQueue::Inventory() {
  MutexLock lock(mutex_);
  ReportBatch batch;
  batch.replicas.reserve(held_.size());
  for (const auto& [place, report] : held_) batch.replicas.push_back(report);
  std::erase_if(held_, [](const auto& entry) { return IsShared(entry.first.second); });
  batch.warnings = warnings_;
  batch.ranks = ranks_;
  pending_replicas_.clear();
  removed_.clear();
  return batch;
}

}  // namespace holdfast::agent
