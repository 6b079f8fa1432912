#include "tests/coordinator/state/oracle.h"

#include <fmt/format.h>

#include <algorithm>

namespace holdfast::coord {
namespace {
constexpr uint32_t kStorageTiers = TierBit(Tier::kMemory) | TierBit(Tier::kDisk);
}  // namespace

void StoredRecords::Apply(const Effect& effect) {
  if (const auto* job = std::get_if<PutJob>(&effect)) jobs[job->record.job] = job->record;
  if (const auto* put = std::get_if<PutLineage>(&effect)) {
    lineages[{put->record.job, put->record.incarnation}] = put->record;
  }
  if (const auto* put = std::get_if<PutVersion>(&effect)) {
    versions[{put->record.job, put->record.version}] = put->record;
  }
  if (const auto* erase = std::get_if<EraseJob>(&effect)) jobs.erase(erase->job);
  if (const auto* erase = std::get_if<EraseLineage>(&effect)) {
    lineages.erase({erase->job, erase->incarnation});
  }
  if (const auto* erase = std::get_if<EraseVersion>(&effect)) {
    versions.erase({erase->job, erase->version});
  }
}

Records StoredRecords::ToRecords() const {
  Records records;
  for (const auto& [key, record] : jobs) records.jobs.push_back(record);
  for (const auto& [key, record] : lineages) records.lineages.push_back(record);
  for (const auto& [key, record] : versions) records.versions.push_back(record);
  return records;
}

void Oracle::Attached(const std::string& node, const std::vector<StoredReplica>& inventory) {
  live_[node].clear();
  for (const StoredReplica& report : inventory) {
    const Shard shard{report.identity.version, report.identity.rank.value, report.tier};
    if (damaged_.count({node, shard}) == 0) Held(node, report);
  }
}

void Oracle::CoordinatorRestarted() {
  live_.clear();
  damaged_.clear();
  peer_target_.reset();
}

void Oracle::Damaged(const std::string& node, VersionId version, Rank rank, Tier tier) {
  damaged_.insert({node, {version, rank.value, tier}});
  NotHeld(node, version, rank, tier);
}

void Oracle::Held(const std::string& node, const StoredReplica& report) {
  live_[node].insert({report.identity.version, report.identity.rank.value, report.tier});
  damaged_.erase({node, {report.identity.version, report.identity.rank.value, report.tier}});
  worlds_[report.identity.version] = report.identity.world;
}

void Oracle::NotHeld(const std::string& node, VersionId version, Rank rank, Tier tier) {
  auto found = live_.find(node);
  if (found != live_.end()) found->second.erase({version, rank.value, tier});
}

void Oracle::MemoryFailed(VersionId version, uint32_t world) {
  memory_failed_.insert(version);
  worlds_[version] = world;
}

Incarnation Oracle::Current(const StoredRecords& records) const {
  auto found = records.jobs.find(job_);
  return found == records.jobs.end() ? Incarnation{0} : found->second.incarnation;
}

bool Oracle::Abandoned(VersionId version, const StoredRecords& records) const {
  for (const auto& [key, lineage] : records.lineages) {
    if (lineage.decision == Decision::kVersion && lineage.incarnation > version.incarnation &&
        version.step > lineage.restored.step) {
      return true;
    }
  }
  return false;
}

bool Oracle::IsCommitted(VersionId version, const StoredRecords& records) const {
  auto found = records.versions.find({job_, version});
  return found != records.versions.end() && found->second.tiers != 0 &&
         found->second.phase == Phase::kCommitted;
}

VersionId Oracle::NewestCommitted(const StoredRecords& records) const {
  VersionId newest;
  for (const auto& [key, record] : records.versions) {
    if (record.tiers != 0 && record.phase == Phase::kCommitted && !Abandoned(key.second, records)) {
      newest = std::max(newest, key.second);
    }
  }
  return newest;
}

bool Oracle::HeldAt(VersionId version, uint32_t world, Tier tier) const {
  for (uint32_t rank = 0; rank < world; ++rank) {
    bool held = false;
    for (const auto& [node, shards] : live_)
      held = held || shards.count({version, rank, tier}) != 0;
    if (!held) return false;
  }
  return true;
}

const PeerPlan* Oracle::PlanOf(Incarnation incarnation, const StoredRecords& records) const {
  auto lineage = records.lineages.find({job_, incarnation});
  const bool planned = lineage != records.lineages.end() && !lineage->second.peers.empty();
  return planned ? &lineage->second.peers : nullptr;
}

/// The number of members that lack one of their shards at `tier`, a rank's or the parity.
uint32_t Oracle::Incomplete(VersionId version, const PlannedGroup& group, uint32_t first_number,
                            Tier tier) const {
  uint32_t incomplete = 0;
  for (uint32_t i = 0; i < group.members.size(); ++i) {
    auto node = live_.find(group.members[i].node);
    bool complete = node != live_.end();
    auto need = [&](Rank rank) {
      complete = complete && node->second.count({version, rank.value, tier}) != 0;
    };
    need(ParityRank(first_number + i));
    for (const PlanRank& rank : group.members[i].ranks) need(rank.rank);
    incomplete += complete ? 0 : 1;
  }
  return incomplete;
}

/// Whether each stripe of the group has enough segments for a decode, in memory or on disk.
bool Oracle::EnoughSegmentsRemain(VersionId version, const PlannedGroup& group,
                                  uint32_t first_number) const {
  const size_t n = group.members.size();
  auto has = [&](const PlannedMember& member, Rank rank) {
    auto node = live_.find(member.node);
    return node != live_.end() && (node->second.count({version, rank.value, Tier::kMemory}) != 0 ||
                                   node->second.count({version, rank.value, Tier::kDisk}) != 0);
  };
  for (size_t leader = 0; leader < n; ++leader) {
    size_t left = 0;
    for (size_t away = 0; away < n; ++away) {
      const size_t i = (leader + away) % n;
      const PlannedMember& member = group.members[i];
      const bool segment =
          away < group.parity
              ? has(member, ParityRank(first_number + static_cast<uint32_t>(i)))
              : std::all_of(member.ranks.begin(), member.ranks.end(),
                            [&](const PlanRank& rank) { return has(member, rank.rank); });
      left += segment ? 1 : 0;
    }
    if (left < n - group.parity) return false;
  }
  return true;
}

bool Oracle::HeldAtPeer(VersionId version, const StoredRecords& records) const {
  const PeerPlan* plan = PlanOf(version.incarnation, records);
  if (plan == nullptr) return false;
  const auto complete = [&](Tier tier) {
    uint32_t number = 0;
    for (const PlannedGroup& group : *plan) {
      if (Incomplete(version, group, number, tier) != 0) return false;
      number += static_cast<uint32_t>(group.members.size());
    }
    return true;
  };
  return complete(Tier::kMemory) || complete(Tier::kDisk);
}

bool Oracle::Decodable(VersionId version, uint32_t rank, const StoredRecords& records) const {
  const PeerPlan* plan = PlanOf(version.incarnation, records);
  auto record = records.versions.find({job_, version});
  if (plan == nullptr || record == records.versions.end()) return false;
  if ((record->second.tiers & (TierBit(Tier::kPeer) | TierBit(Tier::kDisk))) == 0) return false;
  uint32_t number = 0;
  for (const PlannedGroup& group : *plan) {
    for (const PlannedMember& member : group.members) {
      for (const PlanRank& has : member.ranks) {
        if (has.rank.value == rank) return EnoughSegmentsRemain(version, group, number);
      }
    }
    number += static_cast<uint32_t>(group.members.size());
  }
  return false;
}

VersionId Oracle::NewestAt(Tier tier, const StoredRecords& records) const {
  VersionId newest;
  for (const auto& [key, record] : records.versions) {
    const bool there = record.phase == Phase::kCommitted && (record.tiers & TierBit(tier)) != 0;
    if (there && !Abandoned(key.second, records)) newest = std::max(newest, key.second);
  }
  return newest;
}

/// Whether the current incarnation has no parity groups and has committed a version.
bool Oracle::Unprotected(const StoredRecords& records) const {
  const Incarnation current = Current(records);
  return PlanOf(current, records) == nullptr &&
         NewestAt(Tier::kMemory, records).incarnation == current;
}

bool Oracle::Restorable(const VersionRecord& record, const StoredRecords& records,
                        bool superseded_memory_counts) const {
  if (record.phase != Phase::kCommitted || Abandoned(record.version, records)) return false;
  VersionId newest_memory;
  for (const auto& [key, other] : records.versions) {
    if ((other.tiers & TierBit(Tier::kMemory)) != 0 && !Abandoned(key.second, records)) {
      newest_memory = std::max(newest_memory, key.second);
    }
  }
  const bool floor = record.version == NewestAt(Tier::kPeer, records) &&
                     released_.count(record.version) == 0 && !Unprotected(records);
  const bool memory = superseded_memory_counts || record.version >= newest_memory || floor;
  for (uint32_t rank = 0; rank < record.world; ++rank) {
    bool held = false;
    for (const auto& [node, shards] : live_) {
      held = held || shards.count({record.version, rank, Tier::kDisk}) != 0 ||
             (memory && shards.count({record.version, rank, Tier::kMemory}) != 0);
    }
    held = held || (memory && Decodable(record.version, rank, records));
    if (!held) return false;
  }
  return true;
}

VersionId Oracle::NewestRestorable(const StoredRecords& records,
                                   bool superseded_memory_counts) const {
  VersionId newest;
  for (const auto& [key, record] : records.versions) {
    if (Restorable(record, records, superseded_memory_counts))
      newest = std::max(newest, key.second);
  }
  return newest;
}

void Oracle::Check(const std::vector<Effect>& effects, const StoredRecords& before,
                   const StoredRecords& records) {
  bool decided = false;
  const std::optional<Step> peer_target = peer_target_;  // as last sent before this event
  StoredRecords running = before;
  for (const Effect& effect : effects) {
    if (const auto* put = std::get_if<PutVersion>(&effect)) {
      if (put->committed_tier_bit != 0) {
        CheckCommit(put->record, put->committed_tier_bit, before, records);
      }
      if (put->record.phase == Phase::kAborted) announced_aborted_.insert(put->record.version);
      if (put->record.phase == Phase::kRemoving) {
        CheckRemoval(put->record.version, running, records);
      }
    } else if (const auto* erase = std::get_if<EraseVersion>(&effect)) {
      CheckRemoval(erase->version, running, records);
    } else if (const auto* lineage = std::get_if<PutLineage>(&effect)) {
      if (lineage->change == LineageChange::kDecided) {
        decided = true;
        CheckDecision(lineage->record, running);
      } else {
        CheckUndecided(lineage->record, running);
      }
    } else if (const auto* send = std::get_if<Send>(&effect)) {
      if (const auto* job_state = std::get_if<JobState>(&send->directive)) {
        CheckJobState(*job_state, records);
      }
    }
    running.Apply(effect);
  }
  const VersionId newest = NewestCommitted(records);
  if (newest < newest_ && !decided) {
    AddProblem(fmt::format("the newest committed version went back from {} to {}",
                           ToString(newest_), ToString(newest)));
  }
  newest_ = newest;
  CheckFloor(effects, records, decided);
  CheckCompleteVersionsAreCommitted(records);
  CheckParityIsCommitted(records, peer_target);
}

/// The newest version at peer never becomes an older one, unless a restore took an older version or
/// the current incarnation has no parity groups.
void Oracle::CheckFloor(const std::vector<Effect>& effects, const StoredRecords& records,
                        bool decided) {
  const VersionId newest = NewestAt(Tier::kPeer, records);
  const bool unprotected = Unprotected(records);
  if (newest < newest_peer_ && !decided && !unprotected) {
    AddProblem(fmt::format("the newest at peer went back from {} to {}", ToString(newest_peer_),
                           ToString(newest)));
  }
  if (newest != newest_peer_) released_.insert(newest_peer_);
  if (unprotected) released_.insert(newest);
  newest_peer_ = newest;
  for (const Effect& effect : effects) {
    const auto* send = std::get_if<Send>(&effect);
    if (send == nullptr) continue;
    if (const auto* remove = std::get_if<RemoveVersion>(&send->directive)) {
      if (remove->version == newest && released_.count(newest) == 0) {
        AddProblem(fmt::format("{} is removed at {} although nothing newer is at peer",
                               ToString(newest), ToString(remove->tier)));
      }
    }
    const auto* job_state = std::get_if<JobState>(&send->directive);
    if (job_state == nullptr) continue;
    peer_target_ = job_state->target_step[Tier::kPeer];
    const VersionId sent = job_state->committed[Tier::kPeer].value_or(VersionId{});
    const bool none = !job_state->committed[Tier::kPeer];
    if (sent != newest && !(none && released_.count(newest) != 0)) {
      AddProblem(fmt::format("{} is sent as the newest at peer, the newest is {}", ToString(sent),
                             ToString(newest)));
    }
    if (job_state->group && PlanOf(job_state->incarnation, records) == nullptr) {
      AddProblem(
          fmt::format("incarnation {} gets an unplanned group", job_state->incarnation.value));
    }
  }
}

/// A change of a lineage other than the decision keeps the decision and an existing plan.
void Oracle::CheckUndecided(const LineageRecord& lineage, const StoredRecords& before) {
  auto old = before.lineages.find({job_, lineage.incarnation});
  const LineageRecord was = old == before.lineages.end() ? LineageRecord{} : old->second;
  if (lineage.decision != was.decision || lineage.restored != was.restored) {
    AddProblem(
        fmt::format("incarnation {} changed its decision unannounced", lineage.incarnation.value));
  }
  const bool dropped = lineage.peers.empty() && lineage.incarnation < Current(before);
  if (!was.peers.empty() && lineage.peers != was.peers && !dropped) {
    AddProblem(fmt::format("the groups of incarnation {} changed", lineage.incarnation.value));
  }
}

void Oracle::CheckCommit(const VersionRecord& record, uint32_t tier_bit,
                         const StoredRecords& before, const StoredRecords& records) {
  const Tier tier = tier_bit == TierBit(Tier::kDisk)   ? Tier::kDisk
                    : tier_bit == TierBit(Tier::kPeer) ? Tier::kPeer
                                                       : Tier::kMemory;
  const std::string name = ToString(record.version);
  const bool held = tier == Tier::kPeer
                        ? HeldAtPeer(record.version, records) && (record.tiers & kStorageTiers) != 0
                        : HeldAt(record.version, record.world, tier);
  if (!held) {
    AddProblem(fmt::format("{} committed at {} but not every rank has it", name, ToString(tier)));
  }
  if (announced_aborted_.count(record.version) != 0) {
    AddProblem(fmt::format("{} committed after it was aborted", name));
  }
  if (record.version.incarnation != Current(records) && !IsCommitted(record.version, before)) {
    AddProblem(fmt::format("{} committed, but incarnation {} runs", name, Current(records).value));
  }
  auto old = before.versions.find({job_, record.version});
  if (old != before.versions.end() && (old->second.tiers & tier_bit) != 0) {
    AddProblem(fmt::format("{} committed twice at {}", name, ToString(tier)));
  }
  ever_committed_.insert(record.version);
}

void Oracle::CheckRemoval(VersionId version, const StoredRecords& before,
                          const StoredRecords& records) {
  auto old = before.versions.find({job_, version});
  if (old == before.versions.end() || old->second.phase != Phase::kCommitted) return;
  if (old->second.pinned) AddProblem(fmt::format("{} removed although pinned", ToString(version)));
  StoredRecords with = records;
  with.versions[{job_, version}] = old->second;
  if (!Restorable(old->second, with, false)) return;
  if (NewestRestorable(with, true) <= version) {
    AddProblem(fmt::format("{} removed although it is the newest restorable", ToString(version)));
  }
}

void Oracle::CheckJobState(const JobState& job_state, const StoredRecords& records) {
  for (VersionId version : job_state.aborted) {
    if (IsCommitted(version, records)) {
      AddProblem(fmt::format("{} is committed and sent as aborted", ToString(version)));
    }
    if (ever_committed_.count(version) == 0) announced_aborted_.insert(version);
  }
  for (const auto& version :
       {job_state.committed[Tier::kMemory], job_state.committed[Tier::kDisk]}) {
    if (version && !IsCommitted(*version, records)) {
      AddProblem(fmt::format("{} is sent as committed without a record", ToString(*version)));
    }
  }
}

/// A version that every rank has at a tier must be committed there, unless it failed, was aborted
/// or was superseded.
void Oracle::CheckCompleteVersionsAreCommitted(const StoredRecords& records) {
  const Incarnation current = Current(records);
  for (const auto& [version, world] : worlds_) {
    if (version.incarnation != current || memory_failed_.count(version) != 0) continue;
    if (announced_aborted_.count(version) != 0 || version < newest_) continue;
    auto stored = records.versions.find({job_, version});
    const uint32_t tiers = stored == records.versions.end() ? 0 : stored->second.tiers;
    for (Tier tier : {Tier::kMemory, Tier::kDisk}) {
      if (tier == Tier::kDisk && disk_failed_.count(version) != 0) continue;
      if (HeldAt(version, world, tier) && (tiers & TierBit(tier)) == 0) {
        AddProblem(fmt::format("every rank has {} at {} and it is not committed", ToString(version),
                               ToString(tier)));
      }
    }
  }
}

/// From the peer target on, a version with all its parity is committed at peer, even if newer
/// versions have been committed in memory.
void Oracle::CheckParityIsCommitted(const StoredRecords& records, std::optional<Step> target) {
  const Incarnation current = Current(records);
  if (!target) return;
  for (const auto& [key, record] : records.versions) {
    const VersionId version = key.second;
    if (version.incarnation != current || announced_aborted_.count(version) != 0) continue;
    if ((record.tiers & TierBit(Tier::kMemory)) == 0 || record.phase != Phase::kCommitted) continue;
    if (peer_failed_.count(version) != 0 || version.step < *target) continue;
    if (HeldAtPeer(version, records) && (record.tiers & TierBit(Tier::kPeer)) == 0) {
      AddProblem(
          fmt::format("{} has all its parity and is not committed at peer", ToString(version)));
    }
  }
}

void Oracle::CheckDecision(const LineageRecord& lineage, const StoredRecords& before) {
  auto old = before.lineages.find({job_, lineage.incarnation});
  if (old != before.lineages.end() && old->second.decision != Decision::kNone) {
    AddProblem(fmt::format("incarnation {} decided twice", lineage.incarnation.value));
  }
  if (lineage.decision == Decision::kFresh) {
    if (NewestCommitted(before).incarnation.value != 0) {
      AddProblem(fmt::format("incarnation {} starts fresh although {} is committed",
                             lineage.incarnation.value, ToString(NewestCommitted(before))));
    }
    return;
  }
  auto version = before.versions.find({job_, lineage.restored});
  // Ranks may be prepared from the good chunks of damaged replicas, although the version did not
  // count as restorable until then.
  const bool damaged = std::any_of(damaged_.begin(), damaged_.end(), [&](const auto& replica) {
    return std::get<0>(replica.second) == lineage.restored;
  });
  if (version == before.versions.end() ||
      (!damaged && !Restorable(version->second, before, true))) {
    AddProblem(fmt::format("incarnation {} restores {}, which is not restorable",
                           lineage.incarnation.value, ToString(lineage.restored)));
  }
  const VersionId newest = NewestRestorable(before, false);
  if (!source_failed_ && lineage.restored < newest) {
    AddProblem(fmt::format("incarnation {} restores {} although {} is restorable",
                           lineage.incarnation.value, ToString(lineage.restored),
                           ToString(newest)));
  }
  source_failed_ = false;
}

void Oracle::CheckRestoreReply(Incarnation incarnation, const Reply& reply,
                               const StoredRecords& records) {
  const bool fresh = reply.outcome.code() == ErrorCode::kNotFound;
  if (!fresh && !reply.outcome.ok()) return;
  const VersionId version = fresh ? VersionId{} : reply.version;
  // A rollback within the incarnation.
  if (version.incarnation == incarnation && IsCommitted(version, records)) return;
  auto [found, inserted] = restored_.try_emplace(incarnation, version);
  if (!inserted && found->second != version) {
    AddProblem(fmt::format("incarnation {} got {} and {}", incarnation.value,
                           ToString(found->second), ToString(version)));
  }
  auto lineage = records.lineages.find({job_, incarnation});
  const bool stored = lineage != records.lineages.end() &&
                      lineage->second.decision == (fresh ? Decision::kFresh : Decision::kVersion) &&
                      (fresh || lineage->second.restored == version);
  if (!stored) {
    AddProblem(fmt::format("incarnation {} got {} without a record", incarnation.value,
                           ToString(version)));
  }
}

}  // namespace holdfast::coord
