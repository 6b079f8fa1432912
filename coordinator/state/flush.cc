#include "coordinator/state/flush.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "coordinator/state/survivability.h"
#include "coordinator/state/versions.h"

namespace holdfast::coord {
namespace {
// The newest version of a running job is always written with some delay: operators see that it is
// not durable only after this many times `flush_after`.
constexpr int kBehindFactor = 10;
// If no newer version has come for this many times `flush_after`, the target of a tier no longer
// delays a flush to the tier.
constexpr int kStuckFactor = 30;
// A drain may last as long as the job, whose disks must not be busy all the time.
constexpr auto kDrainFlushInterval = std::chrono::seconds(10);

/// Whether a version at or after the target of the tier is not committed there and still can be.
bool IsTargetInProgress(const Job& job, Tier tier) {
  auto it = job.versions.lower_bound({job.incarnation, job.targets[tier].step()});
  return std::any_of(it, job.versions.end(), [&](const auto& entry) {
    const VersionState& version = entry.second;
    const bool open = ((version.tiers | version.failed_tiers) & TierBit(tier)) == 0;
    return open && (version.phase == Phase::kPending || version.committed());
  });
}

/// Whether `newest` must be flushed to the tier, since no newer version is expected soon or a
/// trainer waits.
bool IsQuiet(const ReadContext& context, const Job& job, VersionId newest, Tier tier) {
  if (job.phase != JobPhase::kRunning || job.wanted == newest) return true;
  const auto idle = context.at.now - job.newest_at;
  if (idle < context.options.flush_after) return false;
  // While the nodes write a version to the tier, the next one is selected when they have finished.
  const bool stuck = idle >= kStuckFactor * context.options.flush_after;
  if (IsTargetInProgress(job, tier) && !stuck) return false;
  if (tier != Tier::kDisk) return true;
  // While a job runs, nodes write only the steps to disk that they are configured to write.
  return std::all_of(job.nodes_now.begin(), job.nodes_now.end(), [&](NodeIndex index) {
    const uint64_t every = context.cluster.nodes[index].disk_every;
    return every == 0 || newest.step.value % every == 0;
  });
}

/// Whether the version is not committed at peer although its groups can build its parity in memory.
bool LacksPeerTier(const Job& job, const VersionState& version) {
  const GroupIndex* groups = job.groups_of(version.id.incarnation);
  if (groups == nullptr || version.committed_at(Tier::kPeer)) return false;
  if (!version.committed_at(Tier::kMemory) || job.released) return false;
  // While a job runs, its memory is for versions of the current incarnation.
  if (job.phase == JobPhase::kRunning && version.id.incarnation != job.incarnation) return false;
  for (uint32_t number = 0; number < groups->members.size(); ++number) {
    if (!HasData(job, version, number, TierBit(Tier::kMemory))) return false;
  }
  return true;
}

/// Whether a drained node of the job has shards that no parity group can rebuild.
bool NeedsCopies(const ReadContext& context, const Job& job) {
  return job.groups_of(job.incarnation) == nullptr &&
         std::ranges::any_of(context.cluster.leaving, [&](NodeIndex index) {
           return job.nodes_now.contains(index) && context.cluster.nodes[index].drain.has_value();
         });
}

/// Whether every rank still has the version, in memory or on disk, and no write of it has failed.
bool CanReachDisk(const Job& job, std::optional<VersionId> id) {
  const VersionState* found = job.FindVersion(id);
  if (found == nullptr) return false;
  const VersionState& version = *found;
  return version.committed() && !version.committed_at(Tier::kDisk) &&
         (version.failed_tiers & TierBit(Tier::kDisk)) == 0 &&
         std::ranges::all_of(version.ranks, [](const RankShard& shard) {
           return shard.IsAtTier(Tier::kMemory) || shard.IsAtTier(Tier::kDisk);
         });
}
}  // namespace

bool IsLeft(const ReadContext& context, const Job& job) {
  return std::ranges::any_of(context.cluster.leaving, [&](NodeIndex index) {
    const Node& node = context.cluster.nodes[index];
    return job.nodes_now.contains(index) && node.attached && node.health.departing;
  });
}

void AdvanceDeparture(const ReadContext& context, Job& job) {
  std::optional<VersionId> next;
  const bool left = IsLeft(context, job);
  if (!job.released && (left || NeedsCopies(context, job))) {
    const auto newest = NewestCommitted(job, Tier::kMemory);
    const auto since = context.at.now - job.copies[Tier::kDisk].committed_at;
    if (CanReachDisk(job, job.flush)) {
      next = job.flush;
    } else if ((left || since >= kDrainFlushInterval) &&
               newest > NewestCommitted(job, Tier::kDisk) && CanReachDisk(job, newest)) {
      next = newest;
    }
  }
  if (next == job.flush) return;
  job.flush = next;
  job.job_state_changed = true;
}

std::optional<Flush> NextFlush(const ReadContext& context, Job& job) {
  const auto newest = NewestOfNodes(job);
  if (!newest) return std::nullopt;
  Flush flush{.version = &job.versions.at(*newest)};
  flush.to_disk =
      !flush.version->committed_at(Tier::kDisk) && IsQuiet(context, job, *newest, Tier::kDisk);
  flush.to_peer = LacksPeerTier(job, *flush.version) && IsQuiet(context, job, *newest, Tier::kPeer);
  if (!flush.to_disk && !flush.to_peer) return std::nullopt;
  return flush;
}

void StartFlush(const ReadContext& context, Job& job) {
  const std::optional<Flush> flush = NextFlush(context, job);
  if (!flush) return;
  job.repair_due = true;
  if (!flush->to_peer || job.phase != JobPhase::kRunning) return;
  const VersionId version = flush->version->id;
  TierTarget& target = job.targets[Tier::kPeer];
  if (target.step() <= version.step || job.peer_flush == version) return;
  job.peer_flush = version;
  target.Restart(version.step);
  job.job_state_changed = true;
}

void PlanFlush(Context& context, Job& job, std::map<RepairKey, Repair>& missing) {
  const std::optional<Flush> flush = NextFlush(context, job);
  if (!flush) return;
  VersionState* version = flush->version;
  // The node may already be writing the shard.
  const auto not_before = context.at.now + context.options.flush_after;
  const auto want = [&](NodeIndex node, Rank rank, Tier tier) {
    Repair repair;
    repair.target = node;
    repair.not_before = not_before;
    missing.emplace(RepairKey{version->id, rank, tier}, repair);
  };
  // A tier that failed is tried again: the disk may have been full, or a member may have been away.
  const auto retry = [&](Tier tier) {
    if ((version->failed_tiers & TierBit(tier)) == 0) return;
    version->failed_tiers &= ~TierBit(tier);
    StoreVersion(context, job, *version, 0);
  };
  if (flush->to_disk) {
    retry(Tier::kDisk);
    for (uint32_t rank = 0; rank < version->world; ++rank) {
      const RankShard& shard = version->ranks[rank];
      if (shard.IsAtTier(Tier::kDisk)) continue;
      auto replica = std::find_if(shard.replicas.begin(), shard.replicas.end(),
                                  [](const Replica& one) { return one.tier == Tier::kMemory; });
      if (replica != shard.replicas.end()) {
        want(replica->node, Rank{rank}, Tier::kDisk);
      } else if (CanDecode(job, *version, Rank{rank})) {
        const GroupIndex& groups = *job.groups_of(version->id.incarnation);
        const NodeIndex node = groups.members[groups.by_rank[rank]].node;
        if (context.cluster.nodes[node].attached) want(node, Rank{rank}, Tier::kDisk);
      }
    }
  }
  if (!flush->to_peer) return;
  retry(Tier::kPeer);
  const GroupIndex& groups = *job.groups_of(version->id.incarnation);
  for (uint32_t number = 0; number < groups.members.size(); ++number) {
    if (HasParity(job, *version, number, TierBit(Tier::kMemory))) continue;
    const NodeIndex node = groups.members[number].node;
    if (context.cluster.nodes[node].attached) want(node, ParityRank(number), Tier::kMemory);
  }
}

std::string WhyNotDurable(const ReadContext& context, const Job& job) {
  const auto newest = NewestOfNodes(job);
  if (!newest) return "";
  const bool runs = job.phase == JobPhase::kRunning;
  if (runs && context.at.now - job.newest_at < kBehindFactor * context.options.flush_after) {
    return "";
  }
  const VersionState& version = job.versions.at(*newest);
  const auto is_late = [&](Tier tier) {
    return !version.committed_at(tier) && IsQuiet(context, job, *newest, tier);
  };
  std::string lacks;
  if (is_late(Tier::kDisk)) lacks = "on disk";
  if (job.groups_of(newest->incarnation) != nullptr && is_late(Tier::kPeer)) {
    lacks += lacks.empty() ? "at tier peer" : " and not at tier peer";
  }
  if (lacks.empty()) return "";
  return fmt::format("version {} is the newest and not {}", ToString(*newest), lacks);
}

}  // namespace holdfast::coord
