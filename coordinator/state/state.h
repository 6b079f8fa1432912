#pragma once

#include <optional>
#include <string>
#include <vector>

#include "coordinator/state/cluster.h"
#include "coordinator/state/events.h"
#include "coordinator/state/options.h"
#include "coordinator/state/records.h"
#include "coordinator/state/statuses.h"

namespace holdfast::coord {

/// The coordinator's state of jobs, versions and nodes, and the rules that change it. Events go in
/// and effects come out; there are no threads, no I/O and no clock. The caller stores the Put and
/// Erase effects of an event, in order, before it acts on any other effect. If storing fails, the
/// caller discards the State and loads a new one from the store.
///
/// This class keeps the data and passes each event to the module that handles it; README.md lists
/// the modules. passes.h states what follows every event. Thread-compatible.
class State {
 public:
  /// Creates the state from `records` as read from the store. Returns DataLoss if they contradict
  /// each other.
  static Result<State> Load(const StateOptions& options, const Records& records, Instant at);

  /// Applies the event at the time `at` and returns its effects.
  std::vector<Effect> Apply(const Event& event, Instant at);
  /// Call after the events whose effects are stored in one write. Returns further effects, to be
  /// stored in the same write: of rules that read a whole job, and therefore do not follow each of
  /// thousands of events.
  std::vector<Effect> FinishBatch();

  // ---- operators' queries; see statuses.h ----
  std::vector<NodeStatus> Nodes() const;
  /// Returns all jobs, or only the named one. NotFound: no such job.
  Result<std::vector<JobStatus>> Jobs(const std::string& job) const;
  /// Returns the versions of a job, newest first. NotFound: no such job.
  Result<std::vector<VersionStatus>> Versions(const std::string& job) const;
  /// Returns the nearest source of each shard of `version` (empty: the newest restorable).
  /// With `tier`, only replicas at that tier count. NotFound: no such job or version.
  /// FailedPrecondition: a rank has no source.
  Result<RestorePlanStatus> PlanRestore(const std::string& job, std::optional<VersionId> version,
                                        std::optional<Tier> tier) const;
  /// Returns every replica of every shard of `version` (empty: the newest restorable), and the
  /// parity groups that can decode the shards without a replica. Fails for a version that is not
  /// fully available, unless `as_is`.
  Result<RestorePlanStatus> PlanAllReplicas(const std::string& job,
                                            std::optional<VersionId> version,
                                            bool as_is = false) const;
  /// Returns the impact on one job, or on all if `job` is empty, if `nodes` and all their replicas
  /// were lost. NotFound: no such job or node.
  Result<std::vector<NodeLossImpact>> ImpactOfLosing(const std::string& job,
                                                     const std::vector<std::string>& nodes) const;
  /// Returns whether a node can be stopped without the loss of a version. NotFound: no such node.
  Result<DrainStatus> Drain(const std::string& node) const;
  /// Returns the agents whose attach was refused recently.
  std::vector<RefusedNode> Refused() const;
  /// By rank of the job's current incarnation; empty: no parity groups, or no such job.
  std::vector<ParityLag> ParityLags(const std::string& job) const;
  /// Returns the names that have certificates or are revoked, by role and name.
  std::vector<IdentityRecord> Identities() const;
  LifeId life() const { return options_.life; }
  /// Whether agents may still need to attach: the records were loaded a moment ago.
  bool attaching() const { return at_.now - cluster_.loaded_at < kAttachTime; }
  /// How many versions of a job stay on disk, for jobs without a separate rule.
  uint32_t keep_last() const { return options_.keep_last; }

 private:
  explicit State(const StateOptions& options) : options_(options) {}
  ReadContext Read() const { return {options_, at_, cluster_}; }

  StateOptions options_;
  Instant at_;  // of the last event
  Cluster cluster_;
};

}  // namespace holdfast::coord
