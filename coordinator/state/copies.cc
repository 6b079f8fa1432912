#include "coordinator/state/copies.h"

#include <algorithm>
#include <utility>

#include "coordinator/state/versions.h"

namespace holdfast::coord {
namespace {
/// Whether the version is far enough from the newest one at the tier, or is needed there now.
bool IsDue(const ReadContext& context, const Job& job, Tier tier, VersionId id) {
  const std::optional<VersionId> newest = NewestCommitted(job, tier);
  if (!newest || job.phase != JobPhase::kRunning) return true;
  // The disks of a node that leaves are soon out of reach.
  const bool leaves = std::ranges::any_of(context.cluster.leaving, [&](NodeIndex index) {
    const Node& node = context.cluster.nodes[index];
    return job.nodes_now.contains(index) &&
           (node.drain.has_value() || (node.attached && node.health.departing));
  });
  if (leaves) return true;
  const TierCopy& copy = job.copies[tier];
  if (copy.wanted > newest && id >= copy.wanted) return true;
  const CopyOptions& options = context.options.copies[tier];
  const bool went_back = id.step <= newest->step;
  const bool far = went_back || id.step.value - newest->step.value >= options.every_steps;
  return far && context.at.now - copy.committed_at >= options.interval;
}

/// Returns the newest version that is complete on disk, if it is due at the tier.
std::optional<VersionId> FindDue(const ReadContext& context, const Job& job, Tier tier) {
  for (auto it = job.versions.rbegin(); it != job.versions.rend(); ++it) {
    const auto& [id, version] = *it;
    if (version.committed_at(tier) && !IsAbandoned(job, id)) return std::nullopt;
    if (!version.committed_at(Tier::kDisk) || version.held_at(Tier::kDisk) != version.world ||
        IsAbandoned(job, id)) {
      continue;
    }
    return IsDue(context, job, tier, id) ? std::optional(id) : std::nullopt;
  }
  return std::nullopt;
}

/// Whether the version that is being copied can still be committed at the tier.
bool IsOpen(const Job& job, Tier tier) {
  const VersionState* version = job.FindVersion(job.copies[tier].version);
  return version != nullptr && version->committed() && !version->committed_at(tier) &&
         !IsAbandoned(job, version->id);
}

/// Whether a shard of the copy is being written, or its next attempt is not due yet.
bool IsInProgress(const ReadContext& context, const Job& job, Tier tier) {
  const std::optional<VersionId> version = job.copies[tier].version;
  return std::any_of(job.repairs.begin(), job.repairs.end(), [&](const auto& entry) {
    const auto& [key, repair] = entry;
    if (key.version != version || key.tier != tier) return false;
    return repair.request || context.at.now < repair.not_before;
  });
}

/// Ends the copy of a version that is not complete at the tier, and removes its shards there.
void EndCopy(Job& job, Tier tier) {
  VersionState* version = job.FindVersion(std::exchange(job.copies[tier].version, std::nullopt));
  if (version == nullptr || version->committed_at(tier)) return;
  RemoveStored(job, *version, TierBit(tier));
  version->RemoveReplicasIf([tier](const Replica& replica) { return replica.tier == tier; });
}

void ChooseCopy(const ReadContext& context, Job& job, Tier tier) {
  TierCopy& copy = job.copies[tier];
  const bool open = IsOpen(job, tier);
  if (open && IsInProgress(context, job, tier)) return;
  const std::optional<VersionId> next = FindDue(context, job, tier);
  if (open && next <= copy.version) return;
  EndCopy(job, tier);
  copy.version = next;
  job.retention_due = true;  // retention keeps the version that is being copied
}

/// Returns a node that reaches the tier and has the shard on its disk, preferably the rank's own.
NodeIndex FindWriter(const ReadContext& context, const Job& job, const RankShard& shard, Rank rank,
                     Tier tier) {
  NodeIndex writer = kNoNode;
  for (const Replica& replica : shard.replicas) {
    if (replica.tier != Tier::kDisk) continue;
    if (NodeThatReaches(context, tier, replica.node) != replica.node) continue;
    const bool own =
        rank.value < job.rank_nodes.size() && job.rank_nodes[rank.value] == replica.node;
    if (writer == kNoNode || own) writer = replica.node;
  }
  return writer;
}

void AddMissing(const ReadContext& context, const Job& job, const VersionState& version, Tier tier,
                std::map<RepairKey, Repair>& missing) {
  for (uint32_t rank = 0; rank < version.world; ++rank) {
    const RankShard& shard = version.ranks[rank];
    if (shard.IsAtTier(tier)) continue;
    Repair repair;
    repair.target = FindWriter(context, job, shard, Rank{rank}, tier);
    repair.not_before = context.at.now;
    if (repair.target != kNoNode) missing.emplace(RepairKey{version.id, Rank{rank}, tier}, repair);
  }
}
}  // namespace

void PlanCopies(Context& context, Job& job, std::map<RepairKey, Repair>& missing) {
  for (const TierTraits& traits : kTierTable) {
    const Tier tier = traits.tier;
    if (traits.pace != TierPace::kCopy || NodeThatReaches(context, tier) == kNoNode) continue;
    ChooseCopy(context, job, tier);
    for (const auto& [id, version] : job.versions) {
      const bool lacks = version.committed_at(tier) && version.held_at(tier) != version.world;
      const bool copied = id == job.copies[tier].version && !version.committed_at(tier);
      if (lacks || copied) AddMissing(context, job, version, tier, missing);
    }
  }
}

bool HasCopiesDue(const ReadContext& context, const Job& job) {
  return std::any_of(kTierTable.begin(), kTierTable.end(), [&](const TierTraits& traits) {
    if (traits.pace != TierPace::kCopy || NodeThatReaches(context, traits.tier) == kNoNode) {
      return false;
    }
    return IsOpen(job, traits.tier) || FindDue(context, job, traits.tier).has_value();
  });
}

}  // namespace holdfast::coord
