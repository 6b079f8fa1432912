#include <fmt/format.h>

#include <algorithm>

#include "coordinator/state/peers.h"
#include "coordinator/state/state.h"

// Reshards: ranks read what they need from all ranks' shards, on whichever nodes these are. The
// version is decided as for every restore (restore.cc), but no shard is prepared.

namespace holdfast::coord {
/// Returns the slowest tier that any rank's shard is read from. A shard is read from its nearest
/// replica, or decoded at tier peer if it has none.
Tier State::ReshardTier(const VersionState& version) {
  Tier farthest = Tier::kMemory;
  for (const RankShard& shard : version.ranks) {
    Tier nearest = shard.replicas.empty() ? Tier::kPeer : shard.replicas.front().tier;
    for (const Replica& replica : shard.replicas) nearest = std::min(nearest, replica.tier);
    farthest = std::max(farthest, nearest);
  }
  return farthest;
}

/// Answers a waiter after the decision. Returns false if a shard is missing and nodes that may have
/// it can still return.
bool State::AnswerReshard(Job& job, const VersionState& version, const RestoreWaiter& waiter) {
  if (IsFullyAvailable(job, version)) {
    const Tier tier = ReshardTier(version);
    effects_.emplace_back(
        Reply{waiter.request, {}, job.incarnation, version.id, tier, version.world});
    return true;
  }
  if (!BarrierOpen(job)) return false;
  Answer(waiter.request, FailedPreconditionError(MissingText(job, version)));
  return true;
}

Status State::WorldMismatch(const Job& job, const VersionState& version) {
  return InvalidArgumentError(fmt::format(
      "version {} of job '{}' was saved by {} ranks, this run has {}: no rank can restore its own "
      "shard; read the version with a reader (holdfast_reader_open), or start with {} ranks",
      ToString(version.id), job.name, version.world, job.lineage().world, version.world));
}

Result<RestorePlanStatus> State::PlanAllReplicas(const std::string& name, VersionId id,
                                                 bool as_is) const {
  auto found = jobs_.find(name);
  if (found == jobs_.end()) return Fail(NotFoundError(fmt::format("no job '{}'", name)));
  const Job& job = found->second;
  if (id.incarnation.value == 0) id = NewestRestorable(job);
  auto known = job.versions.find(id);
  if (known == job.versions.end() || !known->second.committed()) {
    return Fail(WhyNotRestorable(job, id));
  }
  const VersionState& version = known->second;
  if (!as_is && !IsFullyAvailable(job, version)) {
    return Fail(
        FailedPreconditionError(fmt::format("job '{}': {}", job.name, MissingText(job, version))));
  }
  RestorePlanStatus plan;
  plan.version = id;
  plan.world = version.world;
  const auto add = [this](Rank rank, const RankShard& shard,
                          std::vector<ReplicaLocation>& sources) {
    for (const Replica& replica : shard.replicas) {
      const Node& node = nodes_[replica.node];
      sources.push_back(
          {rank, node.name, node.data_address, replica.tier, shard.image_bytes, shard.digest});
    }
  };
  for (uint32_t rank = 0; rank < version.world; ++rank) {
    add(Rank{rank}, version.ranks[rank], plan.sources);
  }
  for (uint32_t number = 0; number < version.parity.size(); ++number) {
    add(ParityRank(number), version.parity[number], plan.parity);
  }
  const GroupIndex* groups = job.groups_of(id.incarnation);
  if (groups == nullptr || !MayDecode(version)) return plan;
  for (uint32_t group = 0; group < groups->firsts.size(); ++group) {
    auto members = GroupOf(job, id.incarnation, group, &version);
    if (members) plan.groups.push_back(*std::move(members));
  }
  return plan;
}

}  // namespace holdfast::coord
