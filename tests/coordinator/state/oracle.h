#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "coordinator/state/events.h"

namespace holdfast::coord {

/// The records as a store would hold them.
struct StoredRecords {
  std::map<std::string, JobRecord> jobs;
  std::map<std::pair<std::string, Incarnation>, LineageRecord> lineages;
  std::map<std::pair<std::string, VersionId>, VersionRecord> versions;

  void Apply(const Effect& effect);
  Records ToRecords() const;
};

/// What must hold of a coordinator that manages one job, judged from outside: from the facts that
/// agents gave it, the records it stored and the answers it gave. Shares no code with State.
class Oracle {
 public:
  using Shard = std::tuple<VersionId, uint32_t, Tier>;

  explicit Oracle(std::string job) : job_(std::move(job)) {}

  // ---- what happened ----
  void Attached(const std::string& node, const std::vector<Holding>& inventory);
  void Lost(const std::string& node) { live_.erase(node); }
  void CoordinatorRestarted();
  void Held(const std::string& node, const Holding& holding);
  void NotHeld(const std::string& node, VersionId version, Rank rank, Tier tier);
  void MemoryMissed(VersionId version, uint32_t world);
  void DiskMissed(VersionId version) { disk_missed_.insert(version); }
  void PeerMissed(VersionId version) { peer_missed_.insert(version); }
  /// The coordinator was told that this copy is damaged: it does not count if it is listed again.
  void Damaged(const std::string& node, VersionId version, Rank rank, Tier tier);
  void SourceFailed() { source_failed_ = true; }

  /// Checks one event's effects, already applied to `records`; complaints go to problems().
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
  bool EnoughIsLeft(VersionId version, const PlannedGroup& group, uint32_t first_number) const;
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
  void CheckWord(const JobWord& word, const StoredRecords& records);
  void CheckNothingForgotten(const StoredRecords& records);
  void CheckParityCounts(const StoredRecords& records, std::optional<Step> target);
  void CheckUndecided(const LineageRecord& lineage, const StoredRecords& before);
  void CheckDecision(const LineageRecord& lineage, const StoredRecords& before);
  void Complain(std::string problem) { problems_.push_back(std::move(problem)); }

  const std::string job_;
  std::map<std::string, std::set<Shard>> live_;
  std::set<std::pair<std::string, Shard>> damaged_;
  std::set<VersionId> announced_aborted_;
  std::set<VersionId> ever_committed_;
  std::set<VersionId> memory_missed_;
  std::set<VersionId> disk_missed_;
  std::set<VersionId> peer_missed_;
  std::set<VersionId> released_;  // were the floor once; agents may have freed them since
  std::optional<Step> peer_target_;
  std::map<VersionId, uint32_t> worlds_;
  std::map<Incarnation, VersionId> restored_;  // as answered; 0-0: fresh
  VersionId newest_;
  VersionId newest_peer_;
  bool source_failed_ = false;
  std::vector<std::string> problems_;
};

}  // namespace holdfast::coord
