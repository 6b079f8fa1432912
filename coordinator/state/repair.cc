#include "coordinator/state/repair.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "coordinator/state/copies.h"
#include "coordinator/state/drain_copies.h"
#include "coordinator/state/flush.h"
#include "coordinator/state/job_states.h"
#include "coordinator/state/parity_plan.h"
#include "coordinator/state/prepares.h"
#include "coordinator/state/rehome.h"
#include "coordinator/state/restore_plan.h"
#include "coordinator/state/survivability.h"
#include "coordinator/state/under_protected.h"
#include "coordinator/state/versions.h"

namespace holdfast::coord {
namespace {
constexpr auto kRetryFirst = std::chrono::seconds(1);
constexpr uint32_t kRetryDoublings = 6;
// Fewer failures than this are not reported: a slot or a file may only be in use.
constexpr uint32_t kAttemptsQuiet = 4;

/// Returns the tier that a node repairs a shard from when it has the shard there.
Tier OtherOf(Tier tier) { return tier == Tier::kDisk ? Tier::kMemory : Tier::kDisk; }

/// Adds the shards that the version lacks at a tier where it is committed, if they can be repaired.
void FindMissing(const ReadContext& context, const Job& job, const VersionState& version,
                 std::map<RepairKey, Repair>& missing) {
  const GroupIndex* groups = job.groups_of(version.id.incarnation);
  if (groups == nullptr) return;
  // In memory only while the job runs: a job that restarts needs its nodes for the restore.
  const bool runs = job.ranks_joined == job.lineage().world && !job.released;
  const bool in_memory = runs && version.committed_at(Tier::kPeer) && version.id == PeerFloor(job);
  const bool on_disk = version.committed_at(Tier::kDisk);
  for (uint32_t group = 0; (in_memory || on_disk) && group < groups->firsts.size(); ++group) {
    const PlannedGroup& planned = job.lineages.at(version.id.incarnation).peers[group];
    const bool decodes = CanDecodeGroup(job, version, group, kAnyTier | kIncludeDamaged);
    for (uint32_t i = 0; i < planned.members.size(); ++i) {
      const uint32_t number = groups->firsts[group] + i;
      const NodeIndex node = groups->members[number].node;
      if (!context.cluster.nodes[node].attached) continue;
      const auto want = [&](Rank rank, const RankShard& shard, Tier tier) {
        const bool at_other_tier = shard.IsAt(node, OtherOf(tier));
        if (!decodes && !at_other_tier) return;
        Repair repair;
        repair.target = node;
        const bool damaged = version.IsReadable(rank, {node, tier});
        // A damaged shard is repaired at once. A missing one may be on its way: agents write the
        // parity of versions on disk without a directive.
        const bool may_follow = !at_other_tier || (IsParity(rank) && tier == Tier::kDisk);
        repair.not_before = context.at.now + (may_follow && !damaged ? context.options.repair_grace
                                                                     : Clock::Duration::zero());
        missing.emplace(RepairKey{version.id, rank, tier}, repair);
      };
      for (const PlanRank& planned_rank : planned.members[i].ranks) {
        const Rank rank = planned_rank.rank;
        const RankShard& shard = version.ranks[rank.value];
        // A rank's memory belongs to its trainer: repair it only for the current incarnation, on
        // the node where the rank runs.
        const bool runs_here =
            version.id.incarnation == job.incarnation && job.rank_nodes[rank.value] == node;
        if (in_memory && runs_here && !shard.IsAtTier(Tier::kMemory)) {
          want(rank, shard, Tier::kMemory);
        }
        if (on_disk && !shard.IsAt(node, Tier::kDisk)) want(rank, shard, Tier::kDisk);
      }
      const RankShard& parity = version.parity[number];
      if (in_memory && !parity.IsAt(node, Tier::kMemory)) {
        want(ParityRank(number), parity, Tier::kMemory);
      }
      if (on_disk && !parity.IsAt(node, Tier::kDisk)) {
        want(ParityRank(number), parity, Tier::kDisk);
      }
    }
  }
}

void SendRepair(Context& context, Job& job, const RepairKey& key, Repair& repair) {
  VersionState& version = job.versions.at(key.version);
  const RankShard& shard = *version.Shard(key.rank);
  PrepareShard directive;
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
    directive.group = GroupOf(context, job, key.version.incarnation, group, &version);
  }
  Replica source = kDecode;
  if (shard.IsAt(repair.target, OtherOf(key.tier))) {
    source = {repair.target, OtherOf(key.tier)};
  } else if (!directive.group) {
    source = SourceOfCopy(shard);
  }
  if (source.node != kNoNode) {
    directive.source_node = context.cluster.nodes[source.node].name;
    directive.source_peer_address = context.cluster.nodes[source.node].peer_address;
  }
  directive.tier = source.tier;
  repair.request = AddPrepare(
      context, {job.name, key.version, key.rank, source, repair.target, key.tier, /*repair=*/true});
  directive.request = repair.request;
  // Other members refuse a node that does not have the job state of the incarnation.
  if (job.subscribers.insert(repair.target).second) {
    SendDirective(context, repair.target, JobStateOf(context, job));
  }
  SendDirective(context, repair.target, std::move(directive));
}
}  // namespace

void AdvanceRepairs(Context& context, Job& job) {
  job.repair_due = false;
  RehomeLost(context, job);
  CountUnderProtected(context, job);
  if (IsRestoring(context, job)) {
    job.repair_due = true;
    return;
  }
  std::map<RepairKey, Repair> wanted;
  for (auto& [id, version] : job.versions) {
    if (version.committed() && !IsAbandoned(job, id)) FindMissing(context, job, version, wanted);
  }
  PlanFlush(context, job, wanted);
  PlanCopies(context, job, wanted);
  PlanDrainCopies(context, job, wanted);
  std::set<NodeIndex> busy;
  for (auto& [key, repair] : wanted) {
    auto known = job.repairs.find(key);
    if (known == job.repairs.end() || known->second.target != repair.target) continue;
    const auto not_before = repair.not_before;
    repair = known->second;
    if (repair.attempts == 0) repair.not_before = std::min(repair.not_before, not_before);
    if (repair.request && !IsShared(key.tier)) busy.insert(repair.target);
  }
  job.repairs = std::move(wanted);
  // The newest version first, one repair at a time for each node. Copies to a shared tier do not
  // count: its file system may hang.
  for (auto it = job.repairs.rbegin(); it != job.repairs.rend(); ++it) {
    Repair& repair = it->second;
    if (repair.request || context.at.now < repair.not_before) continue;
    if (IsShared(it->first.tier) || busy.insert(repair.target).second)
      SendRepair(context, job, it->first, repair);
  }
}

void OnRepaired(Context& context, Job& job, const PendingPrepare& pending,
                const Prepared& prepared) {
  job.repair_due = true;
  // Recorded even if the shard was reported before this reply and the repair is no longer listed.
  if (prepared.outcome.ok() && !IsShared(pending.into)) {
    const ShardKey key{job.name, pending.version, pending.rank};
    context.effects.emplace_back(
        Repaired{job.name, context.cluster.nodes[pending.target].name, key, pending.into});
  }
  auto found = job.repairs.find({pending.version, pending.rank, pending.into});
  if (found == job.repairs.end() || found->second.request != prepared.request) return;
  Repair& repair = found->second;
  repair.request.reset();
  // Retention keeps versions that other nodes copy.
  if (job.groups_of(pending.version.incarnation) == nullptr) job.retention_due = true;
  // A node reports the replica before the outcome. If the repair is still listed after a success,
  // the replica does not count yet, and another one at once would not count either.
  repair.failure = prepared.outcome.ok() ? "" : prepared.outcome.message();
  repair.not_before =
      context.at.now + kRetryFirst * (1U << std::min(repair.attempts, kRetryDoublings));
  if (++repair.attempts != kAttemptsQuiet || prepared.outcome.ok()) return;
  RecordFinding(context, job.name, pending.target,
                Status(prepared.outcome.code(),
                       fmt::format("{} is still missing at {}: {}",
                                   ToString(ShardKey{job.name, pending.version, pending.rank}),
                                   ToString(pending.into), prepared.outcome.message())));
}

void CancelRepairsOf(Context& context, NodeIndex node) {
  for (auto& [name, job] : context.cluster.jobs) {
    for (auto& [key, repair] : job.repairs) {
      if (repair.target == node) repair.request.reset();
    }
    job.repair_due = true;
  }
}

}  // namespace holdfast::coord
