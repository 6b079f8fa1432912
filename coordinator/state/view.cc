#include "coordinator/state/view.h"

#include <fmt/format.h>

#include <algorithm>

#include "coordinator/state/state.h"

namespace holdfast::coord {
namespace {
/// Where a rank's shard is read from: memory before disk.
const Copy* Nearest(const RankShard& shard, std::optional<Tier> tier) {
  const Copy* best = nullptr;
  for (const Copy& copy : shard.copies) {
    if (tier && copy.tier != *tier) continue;
    if (best == nullptr || copy.tier < best->tier) best = &copy;
  }
  return best;
}

Tier FarthestTier(const VersionState& version) {
  Tier farthest = Tier::kMemory;
  for (const RankShard& shard : version.ranks) {
    const Copy* copy = Nearest(shard, std::nullopt);
    if (copy != nullptr) farthest = std::max(farthest, copy->tier);
  }
  return farthest;
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
  }
  for (const auto& [name, job] : jobs_) {
    for (const auto& [id, version] : job.versions) {
      for (const RankShard& shard : version.ranks) {
        for (const Copy& copy : shard.copies) {
          NodeView& view = views[copy.node];
          (copy.tier == Tier::kMemory ? view.held_memory_bytes : view.held_disk_bytes) +=
              shard.image_bytes;
        }
      }
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
    if (!only.empty() && name != only) continue;
    JobView view;
    view.name = name;
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
      view.restorable_tier = FarthestTier(job.versions.at(view.restorable));
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
    views.push_back(std::move(view));
  }
  return views;
}

Result<std::vector<VersionView>> State::Versions(const std::string& name) const {
  auto found = jobs_.find(name);
  if (found == jobs_.end()) return Fail(NotFoundError(fmt::format("no job '{}'", name)));
  const Job& job = found->second;
  const VersionId newest_memory = NewestCommitted(job, Tier::kMemory);
  std::vector<VersionView> views;
  for (auto it = job.versions.rbegin(); it != job.versions.rend(); ++it) {
    const auto& [id, version] = *it;
    VersionView view;
    view.version = id;
    view.phase = version.phase;
    view.committed_tiers = version.tiers;
    for (Tier tier : {Tier::kMemory, Tier::kDisk}) {
      if (version.committed_at(tier) && version.held_at(tier) == version.world) {
        view.available_tiers |= TierBit(tier);
      }
    }
    view.world = version.world;
    view.bytes = version.bytes;
    view.wall_nanos = version.wall_nanos;
    view.pinned = version.pinned;
    view.restorable = IsRestorable(job, version);
    view.abandoned = IsAbandoned(job, id);
    // Superseded versions of which only the record is left are no news.
    const bool superseded = version.committed() && !version.committed_at(Tier::kDisk) &&
                            id != newest_memory && version.held_any < version.world;
    if (superseded) continue;
    if (version.phase == Phase::kAborted) {
      view.why_not = "not every rank saved it";
    } else if (version.phase == Phase::kRemoving) {
      view.why_not = "being removed";
    } else if (view.abandoned) {
      view.why_not = "a later incarnation restarted before it";
    } else if (version.held_any < version.world) {
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
      }
      return Fail(FailedPreconditionError(fmt::format("job '{}': {}", name, text)));
    }
    const Node& node = nodes_[copy->node];
    view.sources.push_back(
        {Rank{rank}, node.name, node.data_address, copy->tier, shard.image_bytes, shard.digest});
  }
  return view;
}

}  // namespace holdfast::coord
