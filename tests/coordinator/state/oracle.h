#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "coordinator/state/events.h"

namespace holdfast::coord {

/// The records as a store would have them.
struct StoredRecords {
  std::map<std::string, JobRecord> jobs;
  std::map<std::pair<std::string, Incarnation>, LineageRecord> lineages;
  std::map<std::pair<std::string, VersionId>, VersionRecord> versions;

  void Apply(const Effect& effect);
  Records ToRecords() const;
};

/// Checks the invariants of a coordinator with one job. Uses only what is visible from outside: the
/// agents' reports, the stored records and the replies. Shares no code with State.
class Oracle {
 public:
  using Shard = std::tuple<VersionId, uint32_t, Tier>;

  explicit Oracle(std::string job) : job_(std::move(job)) {}

  // ---- what happened ----
  void Attached(const std::string& node, const std::vector<StoredReplica>& inventory);
  void Lost(const std::string& node) { live_.erase(node); }
  void CoordinatorRestarted();
  void Held(const std::string& node, const StoredReplica& report);
  void NotHeld(const std::string& node, VersionId version, Rank rank, Tier tier);
  void MemoryFailed(VersionId version, uint32_t world);
  void DiskFailed(VersionId version) { disk_failed_.insert(version); }
  void PeerFailed(VersionId version) { peer_failed_.insert(version); }
  /// Records that the replica was reported as damaged: it does not count if it is listed again.
  void Damaged(const std::string& node, VersionId version, Rank rank, Tier tier);
  void SourceFailed() { source_failed_ = true; }

  /// Checks one event's effects, already applied to `records`. Violations are added to problems().
  void Check(const std::vector<Effect>& effects, const StoredRecords& before,
             const StoredRecords& records);
  void CheckRestoreReply(Incarnation incarnation, const Reply& reply, const StoredRecords& records);

  const std::vector<std::string>& problems() const { return problems_; }
  bool IsCommitted(VersionId version, const StoredRecords& records) const;
  VersionId NewestCommitted(const StoredRecords& records) const;

 private:
  bool HeldAt(VersionId version, uint32_t world, Tier tier) const;
  const PeerPlan* PlanOf(Incarnation incarnation, const StoredRecords& records) const;
  uint32_t Incomplete(VersionId version, const PlannedGroup& group, uint32_t first_number,
                      Tier tier) const;
  bool EnoughSegmentsRemain(VersionId version, const PlannedGroup& group,
                            uint32_t first_number) const;
  bool HeldAtPeer(VersionId version, const StoredRecords& records) const;
  bool Decodable(VersionId version, uint32_t rank, const StoredRecords& records) const;
  VersionId NewestAt(Tier tier, const StoredRecords& records) const;
  bool Unprotected(const StoredRecords& records) const;
  void CheckFloor(const std::vector<Effect>& effects, const StoredRecords& records, bool decided);
  bool Restorable(const VersionRecord& record, const StoredRecords& records,
                  bool superseded_memory_counts) const;
  VersionId NewestRestorable(const StoredRecords& records, bool superseded_memory_counts) const;
  bool Abandoned(VersionId version, const StoredRecords& records) const;
  Incarnation Current(const StoredRecords& records) const;
  void CheckCommit(const VersionRecord& record, uint32_t tier_bit, const StoredRecords& before,
                   const StoredRecords& records);
  void CheckRemoval(VersionId version, const StoredRecords& before, const StoredRecords& records);
  void CheckJobState(const JobState& job_state, const StoredRecords& records);
  void CheckCompleteVersionsAreCommitted(const StoredRecords& records);
  void CheckParityIsCommitted(const StoredRecords& records, std::optional<Step> target);
  void CheckUndecided(const LineageRecord& lineage, const StoredRecords& before);
  void CheckDecision(const LineageRecord& lineage, const StoredRecords& before);
  void AddProblem(std::string problem) { problems_.push_back(std::move(problem)); }

  const std::string job_;
  std::map<std::string, std::set<Shard>> live_;
  std::set<std::pair<std::string, Shard>> damaged_;
  std::set<VersionId> announced_aborted_;
  std::set<VersionId> ever_committed_;
  std::set<VersionId> memory_failed_;
  std::set<VersionId> disk_failed_;
  std::set<VersionId> peer_failed_;
  std::set<VersionId> released_;  // former retention floors; agents may have freed them since
  std::optional<Step> peer_target_;
  std::map<VersionId, uint32_t> worlds_;
  std::map<Incarnation, VersionId> restored_;  // by the replies; 0-0: fresh
  VersionId newest_;
  VersionId newest_peer_;
  bool source_failed_ = false;
  std::vector<std::string> problems_;
};

}  // namespace holdfast::coord
