#include <fmt/format.h>

#include <algorithm>

#include "coordinator/state/peers.h"
#include "coordinator/state/state.h"

// Repair of missing redundancy: parity that a replaced node lost or never had on disk, and damaged
// shards.

namespace holdfast::coord {
namespace {
constexpr auto kRetryFirst = std::chrono::seconds(1);
constexpr uint32_t kRetryDoublings = 6;
// Fewer failures than this are not reported: a slot may be in use, or a file may be being written.
constexpr uint32_t kAttemptsQuiet = 4;
// How long repairs wait for ranks that joined and neither restore nor save: they may be loading.
constexpr auto kRestorePatience = std::chrono::minutes(1);
// A shard that is missing for this long is not just being written.
constexpr auto kUnderProtectedPatience = std::chrono::seconds(15);
constexpr size_t kShardsNamed = 6;  // at most, in one text

bool IsAt(const RankShard& shard, NodeIndex node, Tier tier) {
  return std::find(shard.replicas.begin(), shard.replicas.end(), Replica{node, tier}) !=
         shard.replicas.end();
}

bool IsAnywhereAt(const RankShard& shard, Tier tier) {
  return std::any_of(shard.replicas.begin(), shard.replicas.end(),
                     [tier](const Replica& replica) { return replica.tier == tier; });
}

Tier OtherOf(Tier tier) { return tier == Tier::kMemory ? Tier::kDisk : Tier::kMemory; }
}  // namespace

/// Whether a restore is pending. Repairs wait for it: it has the nodes to itself and prepares the
/// shards of its ranks itself. A start whose ranks never request a restore delays repairs only for
/// kRestorePatience.
bool State::IsRestoring(const Job& job) const {
  if (!job.plan.waiters.empty()) return true;
  const bool undecided = job.phase == JobPhase::kRunning &&
                         job.lineage().decision == Decision::kNone && job.newest_seen.value == 0;
  return undecided && at_.now - job.joined_at < kRestorePatience;
}

/// Checks all shards that should exist and sends the repairs that are due. One check costs as much
/// as a commit. It runs after events that change redundancy, and while a shard is missing. Shards
/// on disk are repaired whether or not the job runs.
void State::AdvanceRepairs(Job& job) {
  job.repair_due = false;
  RehomeLost(job);
  CountUnderProtected(job);
  if (IsRestoring(job)) {
    job.repair_due = true;
    return;
  }
  std::map<RepairKey, Repair> wanted;
  for (auto& [id, version] : job.versions) {
    if (version.committed() && !IsAbandoned(job, id)) FindMissing(job, version, wanted);
  }
  PlanFlush(job, wanted);
  std::set<NodeIndex> busy;
  for (auto& [key, repair] : wanted) {
    auto known = job.repairs.find(key);
    if (known == job.repairs.end() || known->second.target != repair.target) continue;
    const auto not_before = repair.not_before;
    repair = known->second;
    if (repair.attempts == 0) repair.not_before = std::min(repair.not_before, not_before);
    if (repair.request != 0) busy.insert(repair.target);
  }
  job.repairs = std::move(wanted);
  // The newest version first, one repair at a time for each node.
  for (auto it = job.repairs.rbegin(); it != job.repairs.rend(); ++it) {
    Repair& repair = it->second;
    if (repair.request != 0 || at_.now < repair.not_before) continue;
    if (busy.insert(repair.target).second) SendRepair(job, it->first, repair);
  }
}

/// Adds the shards that the version lacks at a tier where it is committed and that can be repaired.
void State::FindMissing(const Job& job, const VersionState& version,
                        std::map<RepairKey, Repair>& missing) const {
  const GroupIndex* groups = job.groups_of(version.id.incarnation);
  if (groups == nullptr) return;
  // In memory only while the job runs: a job that restarts needs its nodes for the restore.
  const bool runs = job.ranks_joined == job.lineage().world && !job.released;
  const bool in_memory = runs && version.committed_at(Tier::kPeer) && version.id == PeerFloor(job);
  const bool on_disk = version.committed_at(Tier::kDisk);
  for (uint32_t group = 0; (in_memory || on_disk) && group < groups->firsts.size(); ++group) {
    const PlannedGroup& planned = job.lineages.at(version.id.incarnation).peers[group];
    const bool decodes =
        Erasures(job, version, group, kAnyTier | kIncludeDamaged) <= planned.parity;
    for (uint32_t i = 0; i < planned.members.size(); ++i) {
      const uint32_t number = groups->firsts[group] + i;
      const NodeIndex node = groups->members[number].node;
      if (!nodes_[node].attached) continue;
      const auto want = [&](Rank rank, const RankShard& shard, Tier tier) {
        const bool at_other_tier = IsAt(shard, node, OtherOf(tier));
        if (!decodes && !at_other_tier) return;
        Repair repair;
        repair.target = node;
        const bool damaged = version.IsReadable(rank, {node, tier});
        // A damaged shard is repaired at once. A missing one may be on its way: agents write the
        // parity of versions on disk without a directive.
        const bool may_follow = !at_other_tier || (IsParity(rank) && tier == Tier::kDisk);
        repair.not_before =
            at_.now + (may_follow && !damaged ? options_.repair_grace : Clock::Duration::zero());
        missing.emplace(RepairKey{version.id, rank, tier}, repair);
      };
      for (const PlanRank& planned_rank : planned.members[i].ranks) {
        const Rank rank = planned_rank.rank;
        const RankShard& shard = version.ranks[rank.value];
        // A rank's memory belongs to its trainer: repair it only for the current incarnation, on
        // the node where the rank runs.
        const bool runs_here =
            version.id.incarnation == job.incarnation && job.rank_nodes[rank.value] == node;
        if (in_memory && runs_here && !IsAnywhereAt(shard, Tier::kMemory)) {
          want(rank, shard, Tier::kMemory);
        }
        if (on_disk && !IsAt(shard, node, Tier::kDisk)) want(rank, shard, Tier::kDisk);
      }
      const RankShard& parity = version.parity[number];
      if (in_memory && !IsAt(parity, node, Tier::kMemory)) {
        want(ParityRank(number), parity, Tier::kMemory);
      }
      if (on_disk && !IsAt(parity, node, Tier::kDisk)) {
        want(ParityRank(number), parity, Tier::kDisk);
      }
    }
  }
}

void State::SendRepair(Job& job, const RepairKey& key, Repair& repair) {
  VersionState& version = job.versions.at(key.version);
  const RankShard& shard = *version.Shard(key.rank);
  repair.request = ++next_prepare_;
  PrepareShard directive;
  directive.request = repair.request;
  directive.identity.job = job.name;
  directive.identity.version = key.version;
  directive.identity.rank = key.rank;
  directive.identity.world = version.world;
  directive.into = key.tier;
  directive.digest = shard.known ? shard.digest : 0;
  if (const GroupIndex* groups = job.groups_of(key.version.incarnation)) {
    const uint32_t number =
        IsParity(key.rank) ? ParityNode(key.rank) : groups->by_rank[key.rank.value];
    const uint32_t group = groups->members[number].group;
    directive.group = GroupOf(job, key.version.incarnation, group, &version);
  }
  Replica source = kDecode;
  if (IsAt(shard, repair.target, OtherOf(key.tier))) {
    source = {repair.target, OtherOf(key.tier)};
    directive.source_node = nodes_[repair.target].name;
    directive.source_address = nodes_[repair.target].data_address;
  }
  directive.tier = source.tier;
  pending_prepares_[repair.request] = {job.name,      key.version, key.rank,       source,
                                       repair.target, key.tier,    /*repair=*/true};
  // Other members refuse a node that does not have the job state of the incarnation.
  if (job.subscribers.insert(repair.target).second) SendDirective(repair.target, JobStateOf(job));
  SendDirective(repair.target, std::move(directive));
}

void State::OnRepaired(Job& job, const PendingPrepare& pending, const Prepared& prepared) {
  job.repair_due = true;
  // Recorded even if the shard was reported before this reply and the repair is no longer listed.
  if (prepared.outcome.ok()) {
    const ShardKey key{job.name, pending.version, pending.rank};
    effects_.emplace_back(Repaired{job.name, nodes_[pending.target].name, key, pending.into});
  }
  auto found = job.repairs.find({pending.version, pending.rank, pending.into});
  if (found == job.repairs.end() || found->second.request != prepared.request) return;
  Repair& repair = found->second;
  repair.request = 0;
  if (prepared.outcome.ok()) return;
  repair.failure = prepared.outcome.message();
  repair.not_before = at_.now + kRetryFirst * (1U << std::min(repair.attempts, kRetryDoublings));
  if (++repair.attempts != kAttemptsQuiet) return;
  RecordFinding(job.name, pending.target,
                Status(prepared.outcome.code(),
                       fmt::format("{} is still missing at {}: {}",
                                   ToString(ShardKey{job.name, pending.version, pending.rank}),
                                   ToString(pending.into), prepared.outcome.message())));
}

/// Counts the shards on disk that each version lacks there of those that its parity groups should
/// keep.
void State::CountUnderProtected(Job& job) {
  job.under_protected_counted_at = at_.now;
  std::map<VersionId, UnderProtectedVersion> known = std::exchange(job.under_protected, {});
  for (const auto& [id, version] : job.versions) {
    const GroupIndex* groups = job.groups_of(id.incarnation);
    if (groups == nullptr || !version.committed_at(Tier::kDisk) || IsAbandoned(job, id)) continue;
    UnderProtectedVersion entry;
    std::string names;
    size_t missing = 0;
    const auto count = [&](Rank rank, const RankShard& shard, NodeIndex node) {
      ++entry.shards;
      if (IsAt(shard, node, Tier::kDisk)) {
        ++entry.present;
      } else if (++missing <= kShardsNamed) {
        names += fmt::format("{}{} of node {}{}", missing == 1 ? "" : ", ", ShardName(rank),
                             nodes_[node].name, nodes_[node].attached ? "" : " (down)");
      }
    };
    for (uint32_t number = 0; number < groups->members.size(); ++number) {
      const NodeIndex node = groups->members[number].node;
      for (const PlanRank& rank : MemberAt(job, id.incarnation, number).ranks) {
        count(rank.rank, version.ranks[rank.rank.value], node);
      }
      count(ParityRank(number), version.parity[number], node);
    }
    if (missing == 0) continue;
    if (missing > kShardsNamed) names += ", …";
    entry.missing = std::move(names);
    auto before = known.find(id);
    entry.since = before == known.end() ? at_.now : before->second.since;
    job.under_protected.emplace(id, std::move(entry));
  }
}

std::vector<UnderProtectedStatus> State::UnderProtectedOf(const Job& job) const {
  std::vector<UnderProtectedStatus> statuses;
  for (auto it = job.under_protected.rbegin(); it != job.under_protected.rend(); ++it) {
    const auto& [id, entry] = *it;
    auto version = job.versions.find(id);
    const bool removed = version == job.versions.end() || !version->second.committed();
    // The shards of a lost node are missing at once; other shards may still be on their way.
    const bool away = entry.missing.find("(down)") != std::string::npos;
    if (removed || (!away && at_.now - entry.since < kUnderProtectedPatience)) continue;
    UnderProtectedStatus status{id, entry.shards, entry.present, 0, entry.missing};
    size_t due = 0;
    std::string failure;
    for (auto repair = job.repairs.lower_bound({id, Rank{0}, Tier::kMemory});
         repair != job.repairs.end() && repair->first.version == id; ++repair) {
      if (repair->first.tier != Tier::kDisk) continue;
      ++due;
      if (repair->second.request != 0) ++status.ordered;
      if (!repair->second.failure.empty()) failure = repair->second.failure;
    }
    if (!failure.empty()) {
      status.why += "; the last attempt failed: " + failure;
    } else if (away) {
      status.why += fmt::format(
          "; a node outside the parity group takes the place of one that is away for {} s",
          std::chrono::duration_cast<std::chrono::seconds>(options_.rehome_after).count());
    } else if (due == 0) {
      status.why += IsRestoring(job) ? "; a restore comes first"
                                     : "; the rest of the parity group cannot rebuild them";
    }
    statuses.push_back(std::move(status));
  }
  return statuses;
}

/// Resets the repairs in progress on the node: it will not reply to their directives.
void State::CancelRepairsOf(NodeIndex node) {
  for (auto& [name, job] : jobs_) {
    for (auto& [key, repair] : job.repairs) {
      if (repair.target == node) repair.request = 0;
    }
    job.repair_due = true;
  }
}

}  // namespace holdfast::coord
