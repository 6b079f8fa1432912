#pragma once

#include <deque>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "agent/pipeline/coordinator_link.h"
#include "base/mutex.h"
#include "base/tiers.h"

namespace holdfast::agent {

/// The reports of one message to the coordinator.
struct ReportBatch {
  std::vector<StoredReplica> replicas;
  std::vector<FailedReplica> failed;
  std::vector<RemovedReplica> removed;
  std::vector<Prepared> prepared;
  std::vector<TierWanted> wanted;
  std::vector<std::string> warnings;   // always the complete list
  std::vector<LocalRank> ranks;        // likewise
  std::vector<VersionCommit> commits;  // only in the inventory: the complete list
  bool empty() const {
    return replicas.empty() && failed.empty() && removed.empty() && prepared.empty() &&
           wanted.empty();
  }
};

/// The replicas that this node has, and the reports that the coordinator has not acknowledged. A
/// report is pending until the batch that carries it is acknowledged. While the coordinator is
/// away, the queue stays bounded, and no report is lost that the coordinator still needs:
///
/// - A newer report about the same replica replaces a pending one.
/// - Of failures, each rank and tier keeps the oldest, which may be the coordinator's target, and
///   the newest: kFailuresMax in all.
/// - Beyond kRemovalsMax removals the next inventory states them all: see NeedsAttach().
/// - Each request has one outcome, and each job and tier its newest wait.
///
/// Thread-safe.
class ReportQueue {
 public:
  void Add(StoredReplica report);
  void Add(FailedReplica failed);
  void Add(RemovedReplica removed);
  void Add(Prepared prepared);
  void Add(TierWanted wanted);
  void SetWarnings(std::vector<std::string> warnings);
  void SetRanks(std::vector<LocalRank> ranks);
  void SetCommits(std::vector<VersionCommit> commits);

  /// Waits up to `timeout_ms` until a report is pending. Returns whether one is.
  bool AwaitPending(int timeout_ms);
  /// Wakes AwaitPending once.
  void Wake();
  /// Removes and returns the pending reports, oldest first. The caller passes the batch to Return()
  /// if the coordinator does not acknowledge it.
  ReportBatch Take();
  void Return(ReportBatch batch);
  /// Returns all replicas, for an attach. The coordinator replaces its inventory of this node with
  /// them. No stored or removed replica is pending afterwards.
  ReportBatch Inventory();
  /// Whether removals were merged into the next inventory: the agent must attach again.
  bool NeedsAttach();

  /// Pending failures per rank and tier.
  static constexpr size_t kFailuresMax = 64;
  /// Pending removals from the tiers of this node. Those from shared tiers are not limited: no
  /// inventory has them, and the coordinator orders each of them.
  static constexpr size_t kRemovalsMax = 4096;

 private:
  using Place = std::pair<ShardKey, Tier>;
  /// Job, rank and tier.
  using FailureKey = std::tuple<std::string, Rank, Tier>;
  // These keep an entry that is pending already if it is newer than the added one.
  void AddFailure(FailedReplica failed) HOLDFAST_REQUIRES(mutex_);
  void AddWanted(TierWanted wanted) HOLDFAST_REQUIRES(mutex_);
  void BoundRemovals() HOLDFAST_REQUIRES(mutex_);
  void AddPending(const Place& place) HOLDFAST_REQUIRES(mutex_);
  void ForgetPending(const Place& place) HOLDFAST_REQUIRES(mutex_);
  bool HasPending() const HOLDFAST_REQUIRES(mutex_);

  Mutex mutex_;
  CondVar changed_;
  std::map<Place, StoredReplica> held_ HOLDFAST_GUARDED_BY(mutex_);
  std::deque<Place> pending_replicas_ HOLDFAST_GUARDED_BY(mutex_);
  std::map<FailureKey, std::map<VersionId, FailedReplica>> failed_ HOLDFAST_GUARDED_BY(mutex_);
  std::deque<RemovedReplica> removed_ HOLDFAST_GUARDED_BY(mutex_);
  bool needs_attach_ HOLDFAST_GUARDED_BY(mutex_) = false;
  std::map<uint64_t, Prepared> prepared_ HOLDFAST_GUARDED_BY(mutex_);  // by request
  std::map<std::pair<std::string, Tier>, TierWanted> wanted_ HOLDFAST_GUARDED_BY(mutex_);
  std::vector<std::string> warnings_ HOLDFAST_GUARDED_BY(mutex_);
  std::vector<LocalRank> ranks_ HOLDFAST_GUARDED_BY(mutex_);
  std::vector<VersionCommit> commits_ HOLDFAST_GUARDED_BY(mutex_);
  bool urgent_ HOLDFAST_GUARDED_BY(mutex_) = false;  // woken, or warnings or ranks changed
};

}  // namespace holdfast::agent
