#include "coordinator/state/view.h"

#include <fmt/format.h>

#include <algorithm>

#include "coordinator/state/peers.h"
#include "coordinator/state/state.h"
#include "coordinator/state/survival.h"

namespace holdfast::coord {
namespace {
/// So long after its last attempt a second agent of the same name is shown.
constexpr auto kRivalShown = std::chrono::seconds(30);

/// Where a rank's shard is read from: memory before disk.
const Copy* Nearest(const RankShard& shard, std::optional<Tier> tier) {
  const Copy* best = nullptr;
  for (const Copy& copy : shard.copies) {
    if (tier && copy.tier != *tier) continue;
    if (best == nullptr || copy.tier < best->tier) best = &copy;
  }
  return best;
}

Tier FarthestTier(const Job& job, const VersionState& version) {
  Tier farthest = Tier::kMemory;
  for (uint32_t rank = 0; rank < version.world; ++rank) {
    const Copy* copy = Nearest(version.ranks[rank], std::nullopt);
    Tier nearest = copy == nullptr ? Tier::kPeer : copy->tier;
    if (nearest > Tier::kPeer && CanDecode(job, version, Rank{rank})) nearest = Tier::kPeer;
    farthest = std::max(farthest, nearest);
  }
  return farthest;
}

uint32_t AvailableTiers(const Job& job, const VersionState& version) {
  uint32_t tiers = 0;
  for (Tier tier : {Tier::kMemory, Tier::kDisk}) {
    const bool there = version.committed_at(tier) && version.held_at(tier) == version.world;
    if (there) tiers |= TierBit(tier);
  }
  const bool at_peer = version.committed_at(Tier::kPeer) && PeerMargin(job, version, kAnyTier);
  return at_peer ? tiers | TierBit(Tier::kPeer) : tiers;
}

Survival SurvivalOf(const Job& job, const VersionState& version, uint32_t available) {
  Survival survival;
  if (MayDecode(version)) survival.nodes = PeerMargin(job, version, kAnyTier).value_or(0);
  if (!version.committed_at(Tier::kDisk)) return survival;
  survival.nodes_of_power_cut = PeerMargin(job, version, TierBit(Tier::kDisk));
  if (!survival.nodes_of_power_cut && (available & TierBit(Tier::kDisk)) != 0) {
    survival.nodes_of_power_cut = 0;
  }
  return survival;
}

/// The version of the current incarnation whose parity is being made: the one that most members
/// have theirs of, else the first that the target leads to.
const VersionState* PeerTarget(const Job& job) {
  const VersionState* best = nullptr;
  for (auto it = job.versions.lower_bound({job.incarnation, job.peer_target.step()});
       it != job.versions.end(); ++it) {
    const VersionState& version = it->second;
    if (version.phase != Phase::kPending && !version.committed()) continue;
    if (!IsOnItsWayToPeer(job, version)) continue;
    const bool better = best == nullptr ||
                        version.parity_held_at(Tier::kMemory) > best->parity_held_at(Tier::kMemory);
    if (better) best = &version;
  }
  return best;
}
}  // namespace

std::vector<NodeView> State::Nodes() const {
  std::vector<NodeView> views(nodes_.size());
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    views[i].name = node.name;
    views[i].alive = node.attached;
    views[i].data_address = node.data_address;
    views[i].health = node.health;
    views[i].seen_wall_nanos = node.seen_wall_nanos;
    views[i].peer_address = node.peer_address;
    views[i].labels = node.labels;
    views[i].other_lives = OtherLivesOf(node);
    if (!node.rival.empty() && at_.now - node.rival_seen < kRivalShown) {
      views[i].health.warnings.push_back(fmt::format(
          "a second agent, from {}, wants the name of this node and is refused: give each agent a "
          "`node` of its own",
          node.rival));
    }
  }
  auto count = [&](const RankShard& shard, uint64_t NodeView::*in_memory) {
    for (const Copy& copy : shard.copies) {
      NodeView& view = views[copy.node];
      (copy.tier == Tier::kMemory ? view.*in_memory : view.held_disk_bytes) += shard.image_bytes;
    }
  };
  for (const auto& [name, job] : jobs_) {
    for (const auto& [id, version] : job.versions) {
      for (const RankShard& shard : version.ranks) count(shard, &NodeView::held_memory_bytes);
      for (const RankShard& shard : version.parity) count(shard, &NodeView::held_parity_bytes);
    }
    const PeerSeats* seats = job.seats_of(job.incarnation);
    if (seats == nullptr) continue;
    for (uint32_t number = 0; number < seats->seats.size(); ++number) {
      const PeerSeats::Seat& seat = seats->seats[number];
      const PlannedGroup& group = job.lineage().peers[seat.group];
      views[seat.node].seats.push_back({name, seat.group, number, seat.position,
                                        static_cast<uint32_t>(group.members.size()), group.parity});
    }
  }
  std::sort(views.begin(), views.end(),
            [](const NodeView& a, const NodeView& b) { return a.name < b.name; });
  return views;
}

Result<std::vector<JobView>> State::Jobs(const std::string& only) const {
  if (!only.empty() && jobs_.count(only) == 0) {
    return Fail(NotFoundError(fmt::format("no job '{}'", only)));
  }
  std::vector<JobView> views;
  for (const auto& [name, job] : jobs_) {
    if (only.empty() || name == only) views.push_back(ViewOf(job));
  }
  return views;
}

JobView State::ViewOf(const Job& job) const {
  JobView view;
  view.name = job.name;
  view.uid = job.uid;
  view.incarnation = job.incarnation;
  view.world = job.lineage().world;
  view.ranks_joined = job.ranks_joined;
  view.memory_committed = NewestCommitted(job, Tier::kMemory);
  view.disk_committed = NewestCommitted(job, Tier::kDisk);
  view.restorable = NewestRestorable(job);
  view.committed_total = job.committed_total;
  view.aborted_total = job.aborted_total;
  view.newest_seen = job.newest_seen;
  if (view.restorable.incarnation.value != 0) {
    view.restorable_tier = FarthestTier(job, job.versions.at(view.restorable));
  }
  const VersionId newest = std::max(view.memory_committed, view.disk_committed);
  if (newest.incarnation.value != 0) {
    const VersionState& version = job.versions.at(newest);
    view.committed_wall_nanos = version.wall_nanos;
    if (newest != view.restorable) view.not_restorable_why = MissingText(job, version);
  }
  for (const auto& [id, version] : job.versions) {
    if (version.phase == Phase::kPending) ++view.pending_versions;
  }
  view.peer_committed = PeerFloor(job);
  const auto wall_nanos = [&job](VersionId id) {
    return id.incarnation.value == 0 ? 0 : job.versions.at(id).wall_nanos;
  };
  view.memory_wall_nanos = wall_nanos(view.memory_committed);
  view.peer_wall_nanos = wall_nanos(view.peer_committed);
  view.disk_wall_nanos = wall_nanos(view.disk_committed);
  view.not_protected_why = WhyNoPeers(job);
  view.under_protected = UnderProtectedOf(job);
  view.phase = job.phase;
  view.not_durable_why = WhyNotDurable(job);
  view.ended_wall_nanos = job.ended_wall_nanos;
  view.keep_last = job.keep_last;
  view.keep_every = job.keep_every;
  const PeerSeats* seats = job.seats_of(job.incarnation);
  if (seats == nullptr) return view;
  view.peer_members = static_cast<uint32_t>(seats->seats.size());
  view.peer_target_step = job.peer_target.step();
  if (const VersionState* target = PeerTarget(job)) {
    view.peer_target = target->id;
    view.peer_target_held = target->parity_held_at(Tier::kMemory);
  }
  return view;
}

Result<std::vector<VersionView>> State::Versions(const std::string& name) const {
  auto found = jobs_.find(name);
  if (found == jobs_.end()) return Fail(NotFoundError(fmt::format("no job '{}'", name)));
  const Job& job = found->second;
  const VersionId newest_memory = NewestCommitted(job, Tier::kMemory);
  const VersionId newest_peer = PeerFloor(job);
  std::vector<VersionView> views;
  for (auto it = job.versions.rbegin(); it != job.versions.rend(); ++it) {
    const auto& [id, version] = *it;
    VersionView view;
    view.version = id;
    view.phase = version.phase;
    view.committed_tiers = version.tiers;
    view.available_tiers = AvailableTiers(job, version);
    view.world = version.world;
    view.bytes = version.bytes;
    view.wall_nanos = version.wall_nanos;
    view.pinned = version.pinned;
    view.restorable = IsRestorable(job, version);
    view.abandoned = IsAbandoned(job, id);
    for (const Dispute& dispute : version.disputes) view.disputed.push_back(ToString(dispute));
    // Superseded versions of which only the record is left are no news.
    const bool whole = IsWhole(job, version);
    const bool only_waits = IsOnItsWayToPeer(job, version) && !version.any_parity();
    const bool superseded = version.committed() && !version.committed_at(Tier::kDisk) &&
                            id != newest_memory && id != newest_peer && (!whole || only_waits);
    if (superseded) continue;
    if (view.restorable) {
      view.survives = ToString(SurvivalOf(job, version, view.available_tiers));
    }
    if (version.phase == Phase::kAborted) {
      view.why_not = "not every rank saved it";
    } else if (version.phase == Phase::kRemoving) {
      view.why_not = "being removed";
    } else if (view.abandoned) {
      view.why_not = "a later incarnation restarted before it";
    } else if (!whole) {
      view.why_not = MissingText(job, version);
    } else if (version.phase == Phase::kPending) {
      view.why_not = "not committed yet";
    }
    views.push_back(std::move(view));
  }
  return views;
}

Result<RestoreView> State::PlanRestore(const std::string& name, VersionId wanted,
                                       std::optional<Tier> tier) const {
  auto found = jobs_.find(name);
  if (found == jobs_.end()) return Fail(NotFoundError(fmt::format("no job '{}'", name)));
  const Job& job = found->second;
  const bool named = wanted.incarnation.value != 0;
  if (!named) wanted = NewestRestorable(job);
  auto version = job.versions.find(wanted);
  if (version == job.versions.end() || !version->second.committed()) {
    if (named) return Fail(WhyNotWanted(job, wanted));
    const bool any = std::any_of(job.versions.begin(), job.versions.end(),
                                 [](const auto& entry) { return entry.second.tiers != 0; });
    if (any) return Fail(WhyNothing(job));
    return Fail(NotFoundError(fmt::format("job '{}' has no committed version", name)));
  }
  RestoreView view;
  view.version = wanted;
  view.world = version->second.world;
  for (uint32_t rank = 0; rank < view.world; ++rank) {
    const RankShard& shard = version->second.ranks[rank];
    const Copy* copy = Nearest(shard, tier);
    if (copy == nullptr) {
      std::string text = MissingText(job, version->second);
      if (tier && !shard.copies.empty()) {
        text = fmt::format("version {} has rank {} not at {}", ToString(wanted), rank,
                           ToString(*tier));
      } else if (CanDecode(job, version->second, Rank{rank})) {
        text = fmt::format(
            "version {} has rank {} only in its parity group, which decodes it: read it from "
            "whatever tier it takes",
            ToString(wanted), rank);
      }
      return Fail(FailedPreconditionError(fmt::format("job '{}': {}", name, text)));
    }
    const Node& node = nodes_[copy->node];
    view.sources.push_back(
        {Rank{rank}, node.name, node.data_address, copy->tier, shard.image_bytes, shard.digest});
  }
  for (uint32_t number = 0; tier && number < version->second.parity.size(); ++number) {
    const RankShard& shard = version->second.parity[number];
    for (const Copy& copy : shard.copies) {
      if (copy.tier != *tier) continue;
      const Node& node = nodes_[copy.node];
      view.parity.push_back({ParityRank(number), node.name, node.data_address, copy.tier,
                             shard.image_bytes, shard.digest});
    }
  }
  return view;
}

}  // namespace holdfast::coord
