#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "coordinator/contract/directives.h"
#include "coordinator/contract/reports.h"
#include "coordinator/state/records.h"
#include "coordinator/store/meta_store.h"

namespace holdfast::simulation {

/// Watches the whole system from outside and records each broken promise. It knows what the
/// coordinator has stored, what agents have reported, which notices trainers got and what they have
/// read, and which faults have destroyed something.
class Checker {
 public:
  // ---- what happens ----
  /// The coordinator's store has applied these changes.
  void OnStored(std::span<const coord::Mutation> mutations);
  /// The store was lost, or replaced by an older copy with these records.
  void OnStoreReplaced(const std::map<std::string, std::string, std::less<>>& records);
  /// An operator has removed the job.
  /// Counts the replacements of the store.
  uint64_t store_life() const { return store_life_; }
  void OnForgotten(const std::string& job);
  void OnAdopted() { adopted_ = true; }
  void OnMemoryLost(const std::string& node);
  void OnDiskLost(const std::string& node);
  /// The node's disk may have damaged any byte of it.
  void OnDiskTainted(const std::string& node);
  bool IsDiskTainted(const std::string& node) const { return tainted_.contains(node); }
  /// An agent reports a replica, or that it has none any more.
  void OnReplica(const std::string& node, const ShardKey& key, Tier tier);
  void OnReplicaGone(const std::string& node, const ShardKey& key, Tier tier);
  void OnReplicaRemoved(const std::string& node, const RemovedReplica& removed);
  /// An agent gets a job state, is directed to remove a version, or learns that the coordinator's
  /// store has another life.
  void OnJobState(const std::string& node, const JobState& state);
  void OnRemoval(const std::string& node, const RemoveVersion& removal);
  void OnLife(const std::string& node);
  void OnRunStarted(const std::string& job, uint64_t run) { runs_.insert({job, run}); }
  /// A rank has read all bytes of its shard, or of all shards, or begins fresh. `saved_by`: the
  /// run whose bytes they are. `life`: store_life() when the rank sent its request.
  void OnRestored(const std::string& job, uint64_t run, uint64_t life, uint32_t rank,
                  std::optional<VersionId> version, std::optional<uint64_t> saved_by);
  /// A trainer process got a notice that a version is committed.
  /// Remembers which run has an incarnation.
  void OnJoined(const std::string& job, uint64_t run, Incarnation incarnation) {
    jobs_[job].runs[run] = incarnation;
    runs_.insert({job, run});
  }
  void OnNotified(pid_t pid, VersionId version, Tier tier);
  void Fail(std::string problem);
  /// From now on a decision must take the newest version that no fault has destroyed.
  void DemandNewest(bool on) { demand_newest_ = on; }

  // ---- what is known ----
  const std::vector<std::string>& problems() const { return problems_; }
  /// Whether a version of the job must be restorable.
  bool MustRestore(const std::string& job) const;
  /// Returns the newest version of a job that is committed at the tier; nullopt: none.
  std::optional<VersionId> NewestAt(const std::string& job, Tier tier) const;
  bool IsOfRun(const std::string& job, VersionId version, uint64_t run) const;
  struct Counts {
    uint64_t commits = 0;
    uint64_t peer_commits = 0;
    uint64_t disk_commits = 0;
    uint64_t restores = 0;  // ranks that restored a version
    uint64_t fresh = 0;     // ranks that began fresh
    uint64_t demanded = 0;  // decisions that had to take a version
    uint64_t removed = 0;   // versions that retention removed
  };
  const Counts& counts() const { return counts_; }

 private:
  using Place = std::pair<uint32_t, std::string>;  // rank and node
  /// A version that is committed at a tier, and where its shards were at that time.
  struct Promise {
    VersionId version;
    uint32_t world = 0;
    std::set<Place> places;
    std::set<std::string> memory_lost;  // nodes, since then
  };
  struct KnownState {
    JobState state;  // the last one that the node got
    /// The incarnation in which the newest version at peer replaced another one there; 0: it has
    /// replaced none.
    Incarnation peer_since;
  };
  struct Restored {
    std::optional<VersionId> version;
    std::optional<uint64_t> saved_by;
  };
  struct JobView {
    std::map<VersionId, uint32_t> tiers;  // of the stored versions
    std::map<Tier, Promise> newest;       // by tier; of this life of the store
    /// The newest version on disk that an older copy of the store knew. Nothing is promised of it,
    /// since its shards may be lost, but it replaces older versions.
    std::optional<VersionId> copied;
    std::map<uint64_t, Restored> restored;  // by run
    std::map<uint64_t, Incarnation> runs;
    std::map<Incarnation, uint32_t> parity;
    std::optional<VersionId> decided;  // the version that the newest incarnation restores
    Incarnation decided_in;            // the newest incarnation with a decision
    Incarnation incarnation;
  };

  void OnVersion(const coord::Mutation& mutation);
  void OnLineage(const coord::Mutation& mutation);
  void OnAdopted(JobView& view, const coord::VersionRecord& record);
  void OnCommitted(const std::string& job, JobView& view, VersionId version, uint32_t world,
                   Tier tier);
  void OnDecision(const std::string& job, JobView& view, std::optional<VersionId> version);
  bool IsUnbroken(const JobView& view, Tier tier) const;
  /// The newest version that must be restorable.
  std::optional<VersionId> Required(const JobView& view) const;

  std::map<std::string, JobView> jobs_;
  std::map<std::pair<ShardKey, Tier>, std::set<std::string>> replicas_;
  std::map<ShardKey, std::set<std::string>> memory_lost_;  // nodes that lost a replica in memory
  std::set<std::pair<ShardKey, Tier>> ever_reported_;
  std::map<std::pair<std::string, std::string>, KnownState> job_states_;  // by node and job
  std::set<std::tuple<std::string, std::string, VersionId>> removals_;    // node, job, version
  std::set<std::pair<std::string, uint64_t>> runs_;  // of this life of the store
  std::set<std::string> tainted_;
  std::map<std::pair<pid_t, Tier>, VersionId> notified_;
  uint64_t store_life_ = 1;
  bool store_lost_ = false;
  bool adopted_ = false;
  bool demand_newest_ = false;
  Counts counts_;
  std::vector<std::string> problems_;
};

}  // namespace holdfast::simulation
