#include <fmt/format.h>

#include <algorithm>

#include "coordinator/state/peers.h"
#include "coordinator/state/state.h"

// A version seen whole: ranks that read what they need of everybody's shards where they lie. Which
// version that is is decided as every restore is (restore.cc); nothing is prepared.

namespace holdfast::coord {
/// The farthest tier that a rank's shard is read from: of its copies the nearest, and peer where
/// there is none and its group decodes it.
Tier State::TierOfView(const VersionState& version) {
  Tier farthest = Tier::kMemory;
  for (const RankShard& shard : version.ranks) {
    Tier nearest = shard.copies.empty() ? Tier::kPeer : shard.copies.front().tier;
    for (const Copy& copy : shard.copies) nearest = std::min(nearest, copy.tier);
    farthest = std::max(farthest, nearest);
  }
  return farthest;
}

/// After the decision. False: nodes that may have what is missing may still come back.
bool State::AnswerView(Job& job, const VersionState& version, const RestoreAsk& ask) {
  if (IsWhole(job, version)) {
    effects_.emplace_back(
        Reply{ask.request, {}, job.incarnation, version.id, TierOfView(version), version.world});
    return true;
  }
  if (!GateOpen(job)) return false;
  Answer(ask.request, FailedPreconditionError(MissingText(job, version)));
  return true;
}

Status State::OtherWorld(const Job& job, const VersionState& version) {
  return InvalidArgumentError(fmt::format(
      "version {} of job '{}' was saved by {} ranks, this run has {}: no rank has a shard of its "
      "own there; open a view of the version (holdfast_view_open), or start with {} ranks",
      ToString(version.id), job.name, version.world, job.lineage().world, version.world));
}

Result<RestoreView> State::PlanView(const std::string& name, VersionId id, bool as_is) const {
  auto found = jobs_.find(name);
  if (found == jobs_.end()) return Fail(NotFoundError(fmt::format("no job '{}'", name)));
  const Job& job = found->second;
  if (id.incarnation.value == 0) id = NewestRestorable(job);
  auto known = job.versions.find(id);
  if (known == job.versions.end() || !known->second.committed()) {
    return Fail(WhyNotWanted(job, id));
  }
  const VersionState& version = known->second;
  if (!as_is && !IsWhole(job, version)) {
    return Fail(
        FailedPreconditionError(fmt::format("job '{}': {}", job.name, MissingText(job, version))));
  }
  RestoreView view;
  view.version = id;
  view.world = version.world;
  const auto add = [this](Rank rank, const RankShard& shard, std::vector<SourceView>& sources) {
    for (const Copy& copy : shard.copies) {
      const Node& node = nodes_[copy.node];
      sources.push_back(
          {rank, node.name, node.data_address, copy.tier, shard.image_bytes, shard.digest});
    }
  };
  for (uint32_t rank = 0; rank < version.world; ++rank) {
    add(Rank{rank}, version.ranks[rank], view.sources);
  }
  for (uint32_t number = 0; number < version.parity.size(); ++number) {
    add(ParityRank(number), version.parity[number], view.parity);
  }
  const PeerSeats* seats = job.seats_of(id.incarnation);
  if (seats == nullptr || !MayDecode(version)) return view;
  for (uint32_t group = 0; group < seats->firsts.size(); ++group) {
    view.groups.push_back(GroupOf(job, id.incarnation, group, &version));
  }
  return view;
}

}  // namespace holdfast::coord
