#include <fmt/format.h>

#include <algorithm>

#include "coordinator/state/state.h"

// Facts from agents, and the two things that follow from them: commit and abort.

namespace holdfast::coord {

VersionState& State::Create(Job& job, VersionId id, uint32_t world, Phase phase) {
  VersionState& version = job.versions[id];
  version.id = id;
  version.world = world;
  version.phase = phase;
  version.ranks.resize(world);
  return version;
}

bool State::IsDead(const Job& job, VersionId version) {
  if (version.incarnation < job.incarnation) return true;
  if (version.step <= job.abort_floor && job.abort_floor.value != 0) return true;
  for (auto it = job.versions.rbegin(); it != job.versions.rend() && it->first > version; ++it) {
    if (it->second.tiers != 0) return true;
  }
  return false;
}

bool State::IsAbandoned(const Job& job, VersionId version) {
  for (auto it = job.lineages.upper_bound(version.incarnation); it != job.lineages.end(); ++it) {
    const LineageRecord& later = it->second;
    if (later.decision == Decision::kVersion && version.step > later.restored.step) return true;
  }
  return false;
}

bool State::IsRestorable(const Job& job, const VersionState& version) {
  return version.committed() && version.held_any == version.world && !IsAbandoned(job, version.id);
}

VersionId State::NewestCommitted(const Job& job, Tier tier) {
  for (auto it = job.versions.rbegin(); it != job.versions.rend(); ++it) {
    if (it->second.committed_at(tier) && !IsAbandoned(job, it->first)) return it->first;
  }
  return {};
}

VersionId State::NewestRestorable(const Job& job) {
  for (auto it = job.versions.rbegin(); it != job.versions.rend(); ++it) {
    if (IsRestorable(job, it->second)) return it->first;
  }
  return {};
}

void State::AddHoldings(NodeIndex node, std::vector<Holding> holdings, bool inventory) {
  // In the order of the versions, so that a late report commits the older one before the newer one
  // overtakes it.
  std::stable_sort(holdings.begin(), holdings.end(),
                   [](const Holding& a, const Holding& b) { return a.version < b.version; });
  for (const Holding& holding : holdings) AddHolding(node, holding, inventory);
}

/// The version that `holding` belongs to, or nothing with a finding when it is refused.
VersionState* State::Admit(NodeIndex node, const Holding& holding, Job& job) {
  const std::string shard = ToString(ShardKey{job.name, holding.version, holding.rank});
  auto lineage = job.lineages.find(holding.version.incarnation);
  if (lineage == job.lineages.end()) {
    Find(job.name, node,
         FailedPreconditionError(fmt::format(
             "{}: the job is at incarnation {} and never had this one; it is left alone", shard,
             job.incarnation.value)));
    return nullptr;
  }
  if (lineage->second.world != holding.world) {
    Find(job.name, node,
         InvalidArgumentError(fmt::format("{}: saved in a world of {}, that incarnation has {}",
                                          shard, holding.world, lineage->second.world)));
    return nullptr;
  }
  auto found = job.versions.find(holding.version);
  if (found == job.versions.end()) {
    if (!IsDead(job, holding.version)) {
      return &Create(job, holding.version, holding.world, Phase::kPending);
    }
    // What it was is forgotten; it may have been committed once. On disk it is removed, in memory
    // a newer commit frees it by itself.
    if (holding.tier == Tier::kDisk) {
      return &Create(job, holding.version, holding.world, Phase::kRemoving);
    }
    if (holding.version < NewestCommitted(job, Tier::kMemory)) return nullptr;
    return &Create(job, holding.version, holding.world, Phase::kAborted);
  }
  RankShard& shard_state = found->second.ranks[holding.rank.value];
  if (shard_state.known && shard_state.digest != holding.digest) {
    Find(job.name, node,
         DataLossError(fmt::format("{} at {}: digest {:016x}, known is {:016x}; this copy does not "
                                   "count",
                                   shard, ToString(holding.tier), holding.digest,
                                   shard_state.digest)));
    return nullptr;
  }
  return &found->second;
}

void State::AddHolding(NodeIndex node, const Holding& holding, bool inventory) {
  auto found = jobs_.find(holding.job);
  if (found == jobs_.end() || (holding.tier != Tier::kMemory && holding.tier != Tier::kDisk)) {
    Find(holding.job, node,
         FailedPreconditionError(
             fmt::format("{} at {}: unknown job or tier; it is left alone",
                         ToString(ShardKey{holding.job, holding.version, holding.rank}),
                         ToString(holding.tier))));
    return;
  }
  Job& job = found->second;
  VersionState* version = Admit(node, holding, job);
  if (version == nullptr) return;
  Copy copy{node, holding.tier};
  if (version->IsDamaged(holding.rank, copy)) {
    if (inventory) return;  // the damaged copy, listed again
    auto& damaged = version->damaged;
    damaged.erase(std::find(damaged.begin(), damaged.end(), std::pair(holding.rank, copy)));
  }
  RankShard& shard = version->ranks[holding.rank.value];
  shard.known = true;
  shard.digest = holding.digest;
  shard.image_bytes = holding.image_bytes;
  bool added = version->AddCopy(holding.rank, copy);
  if (job.audience.insert(node).second) job.word_to.insert(node);
  bool current = holding.version.incarnation == job.incarnation;
  if (current) {
    job.newest_seen = std::max(job.newest_seen, holding.version.step);
    NodeIndex& place = job.rank_nodes[holding.rank.value];
    if (place == kNoNode && holding.tier == Tier::kMemory) {
      place = node;
      ++job.ranks_joined;
    }
    if (holding.tier == Tier::kDisk && holding.version.step >= job.disk_target) {
      job.disk_answered.insert(holding.rank);
    }
    if (holding.tier == Tier::kMemory && !inventory) AbortOvertaken(job, holding);
  }
  if (version->phase == Phase::kAborted || version->phase == Phase::kRemoving) {
    job.word_to.insert(node);
    if (holding.tier == Tier::kDisk) job.remove_disk.insert({node, version->id});
  } else {
    TryCommit(job, *version, holding.tier);
  }
  job.changed = job.changed || added;
}

/// A rank seals its steps in order: one it has not reported when it reports a newer one will never
/// come (its trainer was cut off from its agent meanwhile). The others' slots must not wait for it.
void State::AbortOvertaken(Job& job, const Holding& newer) {
  auto it = job.versions.lower_bound(newer.version);
  while (it != job.versions.begin()) {
    VersionState& version = (--it)->second;
    // Whatever is pending below a commit was aborted with it.
    if (version.id.incarnation != job.incarnation || version.committed()) return;
    const bool passed_over = !version.ranks[newer.rank.value].known;
    if (version.phase == Phase::kPending && passed_over) Abort(job, version, true);
  }
}

void State::TryCommit(Job& job, VersionState& version, Tier tier) {
  if (version.phase != Phase::kPending && version.phase != Phase::kCommitted) return;
  if (version.held_at(tier) != version.world) return;
  if (((version.tiers | version.failed_tiers) & TierBit(tier)) != 0) return;
  // A new version only of the current incarnation; a committed one may reach further tiers later.
  if (version.id.incarnation != job.incarnation && version.tiers == 0) return;
  if (version.tiers == 0) {
    version.wall_nanos = at_.wall_nanos;
    ++job.committed_total;
  }
  version.phase = Phase::kCommitted;
  version.tiers |= TierBit(tier);
  version.bytes = 0;
  for (const RankShard& shard : version.ranks) version.bytes += shard.image_bytes;
  Store(job, version, TierBit(tier));
  if (version.id.incarnation == job.incarnation) {
    for (auto& [id, older] : job.versions) {
      if (id >= version.id) break;
      if (older.phase == Phase::kPending) Abort(job, older, false);
    }
    if (tier == Tier::kDisk && version.id.step >= job.disk_target) job.disk_resolved = true;
  }
  job.changed = true;
  job.word_changed = true;
  job.retention_due = true;
}

void State::Abort(Job& job, VersionState& version, bool store) {
  if (version.phase != Phase::kPending) return;
  if (IsDiskTarget(job, version.id)) job.disk_resolved = true;
  version.phase = Phase::kAborted;
  ++job.aborted_total;
  if (store) Store(job, version, 0);
  for (const RankShard& shard : version.ranks) {
    for (const Copy& copy : shard.copies) {
      if (copy.tier == Tier::kDisk) job.remove_disk.insert({copy.node, version.id});
    }
  }
  job.changed = true;
  job.word_changed = true;
}

void State::OnMissing(NodeIndex node, const Missing& missing) {
  auto found = jobs_.find(missing.job);
  if (found == jobs_.end()) return;
  Job& job = found->second;
  auto lineage = job.lineages.find(missing.version.incarnation);
  if (lineage == job.lineages.end() || missing.rank.value >= lineage->second.world) return;
  if (missing.version.incarnation == job.incarnation) {
    job.newest_seen = std::max(job.newest_seen, missing.version.step);
  }
  auto known = job.versions.find(missing.version);
  if (known == job.versions.end()) {
    if (IsDead(job, missing.version)) return;
    Create(job, missing.version, lineage->second.world, Phase::kPending);
    known = job.versions.find(missing.version);
  }
  VersionState& version = known->second;
  Find(job.name, node,
       AbortedError(fmt::format("{} will not reach {}: {}",
                                ToString(ShardKey{job.name, missing.version, missing.rank}),
                                ToString(missing.tier), missing.why)));
  version.RemoveCopy(missing.rank, {node, missing.tier});
  job.changed = true;
  if (missing.tier == Tier::kMemory) return Abort(job, version, true);
  if (version.phase != Phase::kPending && version.phase != Phase::kCommitted) return;
  if (((version.tiers | version.failed_tiers) & TierBit(missing.tier)) != 0) return;
  version.failed_tiers |= TierBit(missing.tier);
  if (version.recorded) Store(job, version, 0);
  if (missing.tier == Tier::kDisk && missing.version.incarnation == job.incarnation &&
      missing.version.step >= job.disk_target) {
    job.disk_resolved = true;
  }
  job.retention_due = true;
}

void State::OnGone(NodeIndex node, const Gone& gone) {
  auto found = jobs_.find(gone.job);
  if (found == jobs_.end()) return;
  auto version = found->second.versions.find(gone.version);
  if (version == found->second.versions.end() || gone.rank.value >= version->second.world) return;
  if (version->second.RemoveCopy(gone.rank, {node, gone.tier})) found->second.changed = true;
}

void State::Store(const Job& job, VersionState& version, uint32_t committed_tier_bit) {
  version.recorded = true;
  VersionRecord record;
  record.job = job.name;
  record.version = version.id;
  record.world = version.world;
  record.phase = version.phase;
  record.tiers = version.tiers;
  record.failed_tiers = version.failed_tiers;
  record.pinned = version.pinned;
  record.wall_nanos = version.wall_nanos;
  record.bytes = version.bytes;
  if (version.tiers != 0) {
    record.digests.reserve(version.ranks.size());
    for (const RankShard& shard : version.ranks) record.digests.push_back(shard.digest);
  }
  effects_.emplace_back(PutVersion{std::move(record), committed_tier_bit});
}

bool State::IsDiskTarget(const Job& job, VersionId version) {
  if (version.incarnation != job.incarnation || version.step < job.disk_target) return false;
  auto it = job.versions.lower_bound({job.incarnation, job.disk_target});
  for (; it != job.versions.end() && it->first < version; ++it) {
    if (it->second.phase == Phase::kPending || it->second.committed()) return false;
  }
  return true;
}

void State::AdvanceDiskTarget(Job& job) {
  // Every rank wrote something and it did not make a version: they chose different steps.
  if (job.disk_answered.size() == job.lineage().world) job.disk_resolved = true;
  if (!job.disk_resolved) return;
  job.disk_resolved = false;
  job.disk_answered.clear();
  job.disk_target = std::max(job.disk_target, Step{job.newest_seen.value + 1});
  job.word_changed = true;
}

}  // namespace holdfast::coord
