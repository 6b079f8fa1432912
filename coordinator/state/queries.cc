#include "coordinator/state/queries.h"

#include <fmt/format.h>

#include <algorithm>

#include "coordinator/state/flush.h"
#include "coordinator/state/lives.h"
#include "coordinator/state/parity_plan.h"
#include "coordinator/state/restore_texts.h"
#include "coordinator/state/survivability.h"
#include "coordinator/state/survival.h"
#include "coordinator/state/targets.h"
#include "coordinator/state/under_protected.h"
#include "coordinator/state/versions.h"

namespace holdfast::coord {
namespace {
/// How long the warning about a second agent with the same node name is shown after the agent's
/// last attempt to attach.
constexpr auto kOtherAgentShown = std::chrono::seconds(30);

/// Returns the replica that a shard is read from: in memory if there is one, else on disk. With
/// `tier`, only replicas at that tier count.
const Replica* Nearest(const RankShard& shard, std::optional<Tier> tier) {
  const Replica* best = nullptr;
  for (const Replica& replica : shard.replicas) {
    if (tier && replica.tier != *tier) continue;
    if (best == nullptr || replica.tier < best->tier) best = &replica;
  }
  return best;
}

/// Describes where the replica is read. Any node that reaches a shared tier serves its replicas.
ReplicaLocation LocationOf(const ReadContext& context, Rank rank, const RankShard& shard,
                           const Replica& replica) {
  ReplicaLocation location{rank, "", "", "", replica.tier, shard.image_bytes, shard.digest};
  const bool shared = replica.node == kNoNode;
  const NodeIndex index =
      shared ? NodeThatReaches(context, replica.tier, shard.last_node) : replica.node;
  if (index == kNoNode) return location;
  location.node = context.cluster.nodes[index].name;
  location.address = context.cluster.nodes[index].data_address;
  location.peer_address = context.cluster.nodes[index].peer_address;
  return location;
}

Tier FarthestTier(const Job& job, const VersionState& version) {
  Tier farthest = Tier::kMemory;
  for (uint32_t rank = 0; rank < version.world; ++rank) {
    const Replica* replica = Nearest(version.ranks[rank], std::nullopt);
    Tier nearest = replica == nullptr ? Tier::kPeer : replica->tier;
    if (nearest > Tier::kPeer && CanDecode(job, version, Rank{rank})) nearest = Tier::kPeer;
    farthest = std::max(farthest, nearest);
  }
  return farthest;
}

uint32_t AvailableTiers(const Job& job, const VersionState& version) {
  uint32_t tiers = 0;
  for (const TierTraits& traits : kTierTable) {
    const Tier tier = traits.tier;
    if (!HasReplicas(tier)) continue;
    const bool there = version.committed_at(tier) && version.held_at(tier) == version.world;
    if (there) tiers |= TierBit(tier);
  }
  const bool at_peer = version.committed_at(Tier::kPeer) && PeerMargin(job, version, kAnyTier);
  return at_peer ? tiers | TierBit(Tier::kPeer) : tiers;
}

Survival SurvivalOf(const Job& job, const VersionState& version, uint32_t available) {
  Survival survival;
  survival.all_nodes = (available & kSharedTiers) != 0;
  if (MayDecode(version)) survival.nodes = PeerMargin(job, version, kAnyTier).value_or(0);
  if (!version.committed_at(Tier::kDisk)) return survival;
  survival.nodes_after_power_cut = PeerMargin(job, version, TierBit(Tier::kDisk));
  if (!survival.nodes_after_power_cut && (available & TierBit(Tier::kDisk)) != 0) {
    survival.nodes_after_power_cut = 0;
  }
  return survival;
}

/// Returns the version of the current incarnation whose parity is being built: of the versions at
/// or after the target, the first one with parity in memory from the largest number of members.
const VersionState* PeerTarget(const Job& job) {
  const VersionState* best = nullptr;
  for (auto it = job.versions.lower_bound({job.incarnation, job.targets[Tier::kPeer].step()});
       it != job.versions.end(); ++it) {
    const VersionState& version = it->second;
    if (version.phase != Phase::kPending && !version.committed()) continue;
    if (!MayReachPeer(job, version)) continue;
    const bool better = best == nullptr ||
                        version.parity_held_at(Tier::kMemory) > best->parity_held_at(Tier::kMemory);
    if (better) best = &version;
  }
  return best;
}

JobStatus StatusOf(const ReadContext& context, const Job& job) {
  JobStatus status;
  status.name = job.name;
  status.uid = job.uid;
  status.incarnation = job.incarnation;
  status.world = job.lineage().world;
  status.ranks_joined = job.ranks_joined;
  for (const TierTraits& traits : kTierTable) {
    const auto newest = traits.reporter == TierReporter::kParity
                            ? PeerFloor(job)
                            : NewestCommitted(job, traits.tier);
    status.committed[traits.tier] = newest;
    status.wall_nanos[traits.tier] = newest ? job.versions.at(*newest).wall_nanos : 0;
    status.copying[traits.tier] = job.copies[traits.tier].version;
  }
  status.restorable = NewestRestorable(job);
  status.committed_total = job.committed_total;
  status.aborted_total = job.aborted_total;
  status.newest_seen = job.newest_seen;
  if (status.restorable) {
    status.restorable_tier = FarthestTier(job, job.versions.at(*status.restorable));
  }
  if (const auto newest = NewestOfNodes(job)) {
    const VersionState& version = job.versions.at(*newest);
    status.committed_wall_nanos = version.wall_nanos;
    if (newest != status.restorable) status.not_restorable_why = MissingText(context, job, version);
  }
  for (const auto& [id, version] : job.versions) {
    if (version.phase == Phase::kPending) ++status.pending_versions;
  }
  status.not_protected_why = WhyNoPeers(context, job);
  status.under_protected = UnderProtectedOf(context, job);
  status.phase = job.phase;
  status.not_durable_why = WhyNotDurable(context, job);
  status.ended_wall_nanos = job.ended_wall_nanos;
  status.keep_last = job.keep_last;
  status.keep_every = job.keep_every;
  const GroupIndex* groups = job.groups_of(job.incarnation);
  if (groups == nullptr) return status;
  status.peer_members = static_cast<uint32_t>(groups->members.size());
  status.peer_target_step = job.targets[Tier::kPeer].step();
  if (const VersionState* target = PeerTarget(job)) {
    status.peer_target = target->id;
    status.peer_target_held = target->parity_held_at(Tier::kMemory);
  }
  return status;
}
}  // namespace

std::vector<NodeStatus> NodeStatuses(const ReadContext& context) {
  std::vector<NodeStatus> statuses(context.cluster.nodes.size());
  for (size_t i = 0; i < context.cluster.nodes.size(); ++i) {
    const Node& node = context.cluster.nodes[i];
    NodeStatus& status = statuses[i];
    status.name = node.name;
    status.alive = node.attached;
    status.data_address = node.data_address;
    status.health = node.health;
    status.seen_wall_nanos = node.seen_wall_nanos;
    status.peer_address = node.peer_address;
    status.labels = node.labels;
    status.drain = node.drain;
    status.other_lives = OtherLivesOf(context, node);
    if (!node.other_agent.empty() && context.at.now - node.other_agent_seen < kOtherAgentShown) {
      status.health.warnings.push_back(fmt::format(
          "a second agent, from {}, uses the name of this node and is refused: give each agent its "
          "own `node`",
          node.other_agent));
    }
  }
  auto count = [&](const RankShard& shard, uint64_t NodeStatus::*in_memory) {
    for (const Replica& replica : shard.replicas) {
      if (replica.node == kNoNode) continue;
      NodeStatus& status = statuses[replica.node];
      (replica.tier == Tier::kMemory ? status.*in_memory : status.held_disk_bytes) +=
          shard.image_bytes;
    }
  };
  for (const auto& [name, job] : context.cluster.jobs) {
    for (const auto& [id, version] : job.versions) {
      for (const RankShard& shard : version.ranks) count(shard, &NodeStatus::held_memory_bytes);
      for (const RankShard& shard : version.parity) count(shard, &NodeStatus::held_parity_bytes);
    }
    const GroupIndex* groups = job.groups_of(job.incarnation);
    if (groups == nullptr) continue;
    for (uint32_t number = 0; number < groups->members.size(); ++number) {
      const GroupIndex::Member& member = groups->members[number];
      const PlannedGroup& group = job.lineage().peers[member.group];
      statuses[member.node].memberships.push_back({name, member.group, number, member.position,
                                                   static_cast<uint32_t>(group.members.size()),
                                                   group.parity});
    }
  }
  std::erase_if(statuses, [](const NodeStatus& status) {
    return !status.alive && status.drain && status.drain->removed;
  });
  std::sort(statuses.begin(), statuses.end(),
            [](const NodeStatus& a, const NodeStatus& b) { return a.name < b.name; });
  return statuses;
}

Result<std::vector<JobStatus>> JobStatuses(const ReadContext& context, const std::string& only) {
  if (!only.empty() && context.cluster.jobs.count(only) == 0) {
    return Fail(NotFoundError(fmt::format("no job '{}'", only)));
  }
  std::vector<JobStatus> statuses;
  for (const auto& [name, job] : context.cluster.jobs) {
    if (only.empty() || name == only) statuses.push_back(StatusOf(context, job));
  }
  return statuses;
}

Result<std::vector<VersionStatus>> VersionStatuses(const ReadContext& context,
                                                   const std::string& name) {
  auto found = context.cluster.jobs.find(name);
  if (found == context.cluster.jobs.end()) {
    return Fail(NotFoundError(fmt::format("no job '{}'", name)));
  }
  const Job& job = found->second;
  const auto newest_memory = NewestCommitted(job, Tier::kMemory);
  const auto newest_peer = PeerFloor(job);
  std::vector<VersionStatus> statuses;
  for (auto it = job.versions.rbegin(); it != job.versions.rend(); ++it) {
    const auto& [id, version] = *it;
    VersionStatus status;
    status.version = id;
    status.phase = version.phase;
    status.committed_tiers = version.tiers;
    status.available_tiers = AvailableTiers(job, version);
    status.world = version.world;
    status.bytes = version.bytes;
    status.wall_nanos = version.wall_nanos;
    status.pinned = version.pinned;
    status.verification = version.verification;
    status.commit_digest = version.commit_digest;
    status.restorable = IsRestorable(job, version);
    status.abandoned = IsAbandoned(job, id);
    for (const Dispute& dispute : version.disputes) status.disputed.push_back(ToString(dispute));
    // Superseded versions are not listed if only their records are left.
    const bool available = IsFullyAvailable(job, version);
    const bool only_waits = MayReachPeer(job, version) && !version.any_parity();
    const bool superseded = version.committed() && !version.committed_stored() &&
                            id != newest_memory && id != newest_peer && (!available || only_waits);
    if (superseded) continue;
    if (status.restorable) {
      status.survives = ToString(SurvivalOf(job, version, status.available_tiers));
    }
    if (version.phase == Phase::kAborted) {
      status.why_not = "not every rank saved it";
    } else if (version.phase == Phase::kRemoving) {
      status.why_not = "being removed";
    } else if (status.abandoned) {
      status.why_not = "a later incarnation restored an older version";
    } else if (!available) {
      status.why_not = MissingText(context, job, version);
    } else if (version.phase == Phase::kPending) {
      status.why_not = "not committed yet";
    }
    statuses.push_back(std::move(status));
  }
  return statuses;
}

Result<RestorePlanStatus> PlanRestore(const ReadContext& context, const std::string& name,
                                      std::optional<VersionId> named, std::optional<Tier> tier) {
  auto found = context.cluster.jobs.find(name);
  if (found == context.cluster.jobs.end()) {
    return Fail(NotFoundError(fmt::format("no job '{}'", name)));
  }
  const Job& job = found->second;
  const VersionState* version = job.FindVersion(named ? named : NewestRestorable(job));
  if (version == nullptr || !version->committed()) {
    if (named) return Fail(WhyNotRestorable(context, job, *named));
    const bool any = std::any_of(job.versions.begin(), job.versions.end(),
                                 [](const auto& entry) { return entry.second.tiers != 0; });
    if (any) return Fail(WhyNothingRestorable(context, job));
    return Fail(NotFoundError(fmt::format("job '{}' has no committed version", name)));
  }
  RestorePlanStatus plan;
  plan.version = version->id;
  plan.world = version->world;
  for (uint32_t rank = 0; rank < plan.world; ++rank) {
    const RankShard& shard = version->ranks[rank];
    const Replica* replica = Nearest(shard, tier);
    if (replica == nullptr) {
      // The shard may be missing, exist only at another tier, or have to be decoded.
      std::string text = MissingText(context, job, *version);
      if (tier && !shard.replicas.empty()) {
        text = fmt::format("version {} has no replica of rank {} at {}", ToString(plan.version),
                           rank, ToString(*tier));
      } else if (CanDecode(job, *version, Rank{rank})) {
        text = fmt::format(
            "version {} has rank {} only in its parity group, which can decode it: read it without "
            "naming a tier",
            ToString(plan.version), rank);
      }
      return Fail(FailedPreconditionError(fmt::format("job '{}': {}", name, text)));
    }
    plan.sources.push_back(LocationOf(context, Rank{rank}, shard, *replica));
  }
  for (uint32_t number = 0; tier && number < version->parity.size(); ++number) {
    const RankShard& shard = version->parity[number];
    for (const Replica& replica : shard.replicas) {
      if (replica.tier != *tier) continue;
      plan.parity.push_back(LocationOf(context, ParityRank(number), shard, replica));
    }
  }
  return plan;
}

Result<RestorePlanStatus> PlanAllReplicas(const ReadContext& context, const std::string& name,
                                          std::optional<VersionId> named, bool as_is) {
  auto found = context.cluster.jobs.find(name);
  if (found == context.cluster.jobs.end()) {
    return Fail(NotFoundError(fmt::format("no job '{}'", name)));
  }
  const Job& job = found->second;
  const VersionState* known = job.FindVersion(named ? named : NewestRestorable(job));
  if (known == nullptr || !known->committed()) {
    if (named) return Fail(WhyNotRestorable(context, job, *named));
    return Fail(NotFoundError(fmt::format("job '{}' has no version that can be restored", name)));
  }
  const VersionState& version = *known;
  if (!as_is && !IsFullyAvailable(job, version)) {
    return Fail(FailedPreconditionError(
        fmt::format("job '{}': {}", job.name, MissingText(context, job, version))));
  }
  RestorePlanStatus plan;
  plan.version = version.id;
  plan.world = version.world;
  const auto add = [&context](Rank rank, const RankShard& shard,
                              std::vector<ReplicaLocation>& sources) {
    for (const Replica& replica : shard.replicas) {
      sources.push_back(LocationOf(context, rank, shard, replica));
    }
  };
  for (uint32_t rank = 0; rank < version.world; ++rank) {
    add(Rank{rank}, version.ranks[rank], plan.sources);
  }
  for (uint32_t number = 0; number < version.parity.size(); ++number) {
    add(ParityRank(number), version.parity[number], plan.parity);
  }
  const GroupIndex* groups = job.groups_of(version.id.incarnation);
  if (groups == nullptr || !MayDecode(version)) return plan;
  for (uint32_t group = 0; group < groups->firsts.size(); ++group) {
    auto members = GroupOf(context, job, version.id.incarnation, group, &version);
    if (members) plan.groups.push_back(*std::move(members));
  }
  return plan;
}

}  // namespace holdfast::coord
