#include "coordinator/state/invariants.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "coordinator/state/versions.h"
#include "storage/erasure/coding_tables.h"

namespace holdfast::coord {
namespace {
uint32_t RanksAt(const VersionState& version, Tier tier) {
  return static_cast<uint32_t>(
      std::count_if(version.ranks.begin(), version.ranks.end(),
                    [tier](const RankShard& shard) { return shard.IsAtTier(tier); }));
}

/// Whether the job's newest committed version of the incarnation is older than `version`.
bool IsNewerThanCommitted(const Job& job, VersionId version) {
  for (auto it = job.versions.upper_bound(version);
       it != job.versions.end() && it->first.incarnation == version.incarnation; ++it) {
    if (it->second.committed()) return false;
  }
  return true;
}
}  // namespace

bool IsValidPlan(const LineageRecord& lineage) {
  std::vector<bool> placed(lineage.world);
  std::set<std::string> nodes;
  uint32_t ranks = 0;
  for (const PlannedGroup& group : lineage.peers) {
    if (group.parity == 0 || group.parity >= group.members.size()) return false;
    for (const PlannedMember& member : group.members) {
      if (!nodes.insert(member.node).second) return false;
      for (const PlanRank& rank : member.ranks) {
        if (rank.rank.value >= lineage.world || placed[rank.rank.value]) return false;
        placed[rank.rank.value] = true;
        ++ranks;
      }
    }
  }
  return lineage.peers.empty() || ranks == lineage.world;
}

void CheckCommit(const ReadContext& context, const Job& job, const VersionState& version,
                 Tier tier) {
  InvariantMonitor& monitor = *context.options.invariants;
  const std::string name = ToString(version.id);
  HOLDFAST_INVARIANT(monitor, version.id.incarnation <= job.incarnation, Kv("job", job.name),
                     Kv("version", name), Kv("incarnation", job.incarnation.value));
  HOLDFAST_INVARIANT(monitor, version.ranks.size() == version.world, Kv("job", job.name),
                     Kv("version", name), Kv("ranks", version.ranks.size()),
                     Kv("world", version.world));
  // Tier peer needs the shards in memory or on disk.
  const uint32_t found =
      tier == Tier::kPeer ? std::max(RanksAt(version, Tier::kMemory), RanksAt(version, Tier::kDisk))
                          : RanksAt(version, tier);
  HOLDFAST_INVARIANT(monitor, found == version.world, Kv("job", job.name), Kv("version", name),
                     Kv("tier", ToString(tier)), Kv("found", found), Kv("world", version.world));
  const bool known = std::all_of(version.ranks.begin(), version.ranks.end(),
                                 [](const RankShard& shard) { return shard.known; });
  HOLDFAST_INVARIANT(monitor, known, Kv("job", job.name), Kv("version", name));
  HOLDFAST_INVARIANT(monitor, (version.tiers & TierBit(tier)) == 0, Kv("job", job.name),
                     Kv("version", name), Kv("tiers", version.tiers));
  // A commit aborts the older versions that are pending, so commits come in version order.
  HOLDFAST_INVARIANT(monitor, version.tiers != 0 || IsNewerThanCommitted(job, version.id),
                     Kv("job", job.name), Kv("version", name));
}

void CheckVersionRecord(const ReadContext& context, const Job& job, const VersionRecord& record,
                        uint32_t committed_tier_bit) {
  InvariantMonitor& monitor = *context.options.invariants;
  const std::string name = ToString(record.version);
  HOLDFAST_INVARIANT(monitor, record.world > 0 && record.version.incarnation.value > 0,
                     Kv("job", job.name), Kv("version", name), Kv("world", record.world));
  HOLDFAST_INVARIANT(monitor, job.versions.contains(record.version), Kv("job", job.name),
                     Kv("version", name));
  HOLDFAST_INVARIANT(monitor, (record.tiers & record.failed_tiers) == 0, Kv("job", job.name),
                     Kv("version", name), Kv("tiers", record.tiers),
                     Kv("failed", record.failed_tiers));
  HOLDFAST_INVARIANT(monitor, record.phase != Phase::kCommitted || record.tiers != 0,
                     Kv("job", job.name), Kv("version", name));
  HOLDFAST_INVARIANT(
      monitor,
      record.phase == Phase::kCommitted || record.phase == Phase::kRemoving || record.tiers == 0,
      Kv("job", job.name), Kv("version", name), Kv("tiers", record.tiers));
  HOLDFAST_INVARIANT(monitor, record.tiers == 0 || record.digests.size() == record.world,
                     Kv("job", job.name), Kv("version", name), Kv("digests", record.digests.size()),
                     Kv("world", record.world));
  HOLDFAST_INVARIANT(monitor,
                     record.tiers == 0 || record.commit_digest == CommitDigest(record.digests),
                     Kv("job", job.name), Kv("version", name));
  if (committed_tier_bit == 0) return;
  HOLDFAST_INVARIANT(monitor,
                     record.phase == Phase::kCommitted &&
                         (record.tiers & committed_tier_bit) == committed_tier_bit,
                     Kv("job", job.name), Kv("version", name), Kv("tiers", record.tiers),
                     Kv("committed", committed_tier_bit));
  const GroupIndex* groups = job.groups_of(record.version.incarnation);
  HOLDFAST_INVARIANT(
      monitor,
      committed_tier_bit != TierBit(Tier::kPeer) ||
          (groups != nullptr && record.parity_digests.size() == groups->members.size()),
      Kv("job", job.name), Kv("version", name), Kv("parity", record.parity_digests.size()));
}

void CheckDecision(const ReadContext& context, const Job& job) {
  InvariantMonitor& monitor = *context.options.invariants;
  const VersionId candidate = job.plan.candidate.value_or(VersionId{});
  const std::string name = ToString(candidate);
  HOLDFAST_INVARIANT(monitor, job.lineage().decision == Decision::kNone, Kv("job", job.name),
                     Kv("version", name));
  HOLDFAST_INVARIANT(monitor, candidate.incarnation <= job.incarnation, Kv("job", job.name),
                     Kv("version", name), Kv("incarnation", job.incarnation.value));
  auto version = job.versions.find(candidate);
  HOLDFAST_INVARIANT(monitor, version != job.versions.end() && version->second.committed(),
                     Kv("job", job.name), Kv("version", name));
  const auto ready = std::count_if(
      job.plan.tasks.begin(), job.plan.tasks.end(),
      [](const RestoreTask& task) { return task.phase == RestoreTask::Phase::kReady; });
  HOLDFAST_INVARIANT(monitor, ready == job.plan.ready, Kv("job", job.name), Kv("version", name),
                     Kv("ready", ready), Kv("counted", job.plan.ready));
}

void CheckRetention(const ReadContext& context, const Job& job, std::optional<VersionId> floor) {
  InvariantMonitor& monitor = *context.options.invariants;
  const auto now = NewestRestorable(job);
  const auto text = [](std::optional<VersionId> version) {
    return version ? ToString(*version) : std::string("none");
  };
  HOLDFAST_INVARIANT(monitor, now == floor, Kv("job", job.name), Kv("before", text(floor)),
                     Kv("now", text(now)));
  const auto newest =
      std::max({NewestCommitted(job, Tier::kMemory), NewestCommitted(job, Tier::kPeer),
                NewestCommitted(job, Tier::kDisk)});
  HOLDFAST_INVARIANT(monitor, now <= newest, Kv("job", job.name), Kv("floor", text(now)),
                     Kv("newest", text(newest)));
}

void CheckParityPlan(const ReadContext& context, const LineageRecord& lineage) {
  InvariantMonitor& monitor = *context.options.invariants;
  HOLDFAST_INVARIANT(monitor, IsValidPlan(lineage), Kv("job", lineage.job),
                     Kv("incarnation", lineage.incarnation.value));
  for (const PlannedGroup& group : lineage.peers) {
    std::set<std::string> places;
    for (const PlannedMember& member : group.members) places.insert(member.place());
    HOLDFAST_INVARIANT(monitor, places.size() == group.members.size(), Kv("job", lineage.job),
                       Kv("nodes", places.size()), Kv("members", group.members.size()));
    HOLDFAST_INVARIANT(monitor, group.parity <= kCodeParityMax, Kv("job", lineage.job),
                       Kv("parity", group.parity));
  }
}

void CheckDomains(const ReadContext& context, const LineageRecord& lineage) {
  std::map<std::string, size_t> nodes;
  for (const PlannedGroup& group : lineage.peers) {
    for (const PlannedMember& member : group.members) ++nodes[member.domain];
  }
  for (const PlannedGroup& group : lineage.peers) {
    std::map<std::string, size_t> here;
    for (const PlannedMember& member : group.members) ++here[member.domain];
    for (const auto& [domain, count] : here) {
      const size_t share = (nodes[domain] + lineage.peers.size() - 1) / lineage.peers.size();
      HOLDFAST_INVARIANT(*context.options.invariants, domain.empty() || count <= share,
                         Kv("job", lineage.job), Kv("domain", domain), Kv("members", count),
                         Kv("share", share));
    }
  }
}

void CheckGroupIndex(const ReadContext& context, const LineageRecord& lineage,
                     const GroupIndex& groups) {
  InvariantMonitor& monitor = *context.options.invariants;
  HOLDFAST_INVARIANT(monitor, groups.firsts.size() == lineage.peers.size(), Kv("job", lineage.job),
                     Kv("firsts", groups.firsts.size()), Kv("groups", lineage.peers.size()));
  HOLDFAST_INVARIANT(monitor, groups.by_rank.size() == lineage.world, Kv("job", lineage.job),
                     Kv("ranks", groups.by_rank.size()), Kv("world", lineage.world));
  const bool in_range =
      std::all_of(groups.by_rank.begin(), groups.by_rank.end(),
                  [&](uint32_t number) { return number < groups.members.size(); });
  HOLDFAST_INVARIANT(monitor, in_range, Kv("job", lineage.job));
  for (const GroupIndex::Member& member : groups.members) {
    HOLDFAST_INVARIANT(monitor, member.node < context.cluster.nodes.size(), Kv("job", lineage.job),
                       Kv("node", member.node));
  }
}

void CheckJob(const ReadContext& context, const Job& job) {
  InvariantMonitor& monitor = *context.options.invariants;
  const LineageRecord& lineage = job.lineage();
  HOLDFAST_INVARIANT(monitor, job.lineages.rbegin()->first == job.incarnation, Kv("job", job.name),
                     Kv("newest", job.lineages.rbegin()->first.value),
                     Kv("incarnation", job.incarnation.value));
  HOLDFAST_INVARIANT(monitor, job.rank_nodes.size() == lineage.world, Kv("job", job.name),
                     Kv("ranks", job.rank_nodes.size()), Kv("world", lineage.world));
  HOLDFAST_INVARIANT(monitor, job.ranks_joined <= lineage.world, Kv("job", job.name),
                     Kv("joined", job.ranks_joined), Kv("world", lineage.world));
  HOLDFAST_INVARIANT(monitor, job.plan.ready <= job.plan.tasks.size(), Kv("job", job.name),
                     Kv("ready", job.plan.ready), Kv("tasks", job.plan.tasks.size()));
  if (job.versions.empty()) return;
  const VersionId newest = job.versions.rbegin()->first;
  HOLDFAST_INVARIANT(monitor, newest.incarnation <= job.incarnation, Kv("job", job.name),
                     Kv("newest", ToString(newest)), Kv("incarnation", job.incarnation.value));
}

}  // namespace holdfast::coord
