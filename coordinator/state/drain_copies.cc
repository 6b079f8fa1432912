#include "coordinator/state/drain_copies.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "coordinator/state/rehome.h"
#include "coordinator/state/versions.h"

namespace holdfast::coord {
namespace {
bool NeedsCopy(const Job& job, const VersionState& version) {
  return version.committed_at(Tier::kDisk) && !IsAbandoned(job, version.id) &&
         job.groups_of(version.id.incarnation) == nullptr && !IsAtSharedTier(version);
}

/// Whether drained nodes have the shard on disk, and no other node has.
bool OnlyOnDrained(const ReadContext& context, const RankShard& shard) {
  return shard.IsAtTier(Tier::kDisk) &&
         std::ranges::all_of(shard.replicas, [&](const Replica& replica) {
           return replica.tier != Tier::kDisk || context.cluster.nodes[replica.node].drain;
         });
}

/// Returns the nodes that can copy the shard, the best one first: a node that has it in memory, the
/// node of the rank, then nodes with more free disk space.
std::vector<NodeIndex> Targets(const ReadContext& context, const Job& job, const RankShard& shard,
                               Rank rank) {
  using Cost = std::tuple<bool, bool, int64_t, std::string, NodeIndex>;
  std::vector<Cost> costs;
  for (NodeIndex index = 0; index < context.cluster.nodes.size(); ++index) {
    const Node& node = context.cluster.nodes[index];
    if (!TakesShards(node)) continue;
    const bool own = rank.value < job.rank_nodes.size() && job.rank_nodes[rank.value] == index;
    costs.emplace_back(!shard.IsAt(index, Tier::kMemory), !own,
                       -static_cast<int64_t>(node.health.disk_free_percent), node.name, index);
  }
  std::ranges::sort(costs);
  std::vector<NodeIndex> targets;
  for (const Cost& cost : costs) targets.push_back(std::get<NodeIndex>(cost));
  return targets;
}

void AddCopies(const ReadContext& context, const Job& job, const VersionState& version,
               std::map<RepairKey, Repair>& missing) {
  for (uint32_t number = 0; number < version.world; ++number) {
    const Rank rank{number};
    const RankShard& shard = version.ranks[number];
    if (!OnlyOnDrained(context, shard)) continue;
    const RepairKey key{version.id, rank, Tier::kDisk};
    Repair repair;
    repair.not_before = context.at.now;
    const auto known = job.repairs.find(key);
    if (known != job.repairs.end()) repair = known->second;
    if (!repair.request || !TakesShards(context.cluster.nodes[repair.target])) {
      const std::vector<NodeIndex> targets = Targets(context, job, shard, rank);
      if (targets.empty()) continue;
      repair.request.reset();
      repair.target = targets[repair.attempts % targets.size()];
    }
    missing.emplace(key, repair);
  }
}

/// Whether a copy of the version has begun, and none has failed.
bool IsBeingCopied(const Job& job, VersionId version) {
  bool any = false;
  for (const auto& [key, repair] : job.repairs) {
    if (key.version != version || key.tier != Tier::kDisk) continue;
    if (repair.attempts != 0) return false;
    any = true;
  }
  return any;
}
}  // namespace

void PlanDrainCopies(const ReadContext& context, const Job& job,
                     std::map<RepairKey, Repair>& missing) {
  if (std::ranges::none_of(context.cluster.nodes,
                           [](const Node& node) { return node.drain.has_value(); })) {
    return;
  }
  const VersionState* newest = nullptr;
  const VersionState* begun = nullptr;
  for (const auto& [id, version] : job.versions) {
    if (!NeedsCopy(job, version)) continue;
    newest = &version;
    if (version.pinned) {
      AddCopies(context, job, version, missing);
    } else if (IsBeingCopied(job, id)) {
      begun = &version;
    }
  }
  const VersionState* chosen = begun != nullptr ? begun : newest;
  if (chosen != nullptr) AddCopies(context, job, *chosen, missing);
}

Replica SourceOfCopy(const RankShard& shard) {
  const auto found = std::ranges::find(shard.replicas, Tier::kDisk, &Replica::tier);
  return found == shard.replicas.end() ? kDecode : *found;
}

}  // namespace holdfast::coord
