#include "tests/simulation/checker.h"

#include <fmt/format.h>

#include <algorithm>

#include "coordinator/store/record_codec.h"

namespace holdfast::simulation {

void Checker::Fail(std::string problem) {
  if (problems_.size() < 20) problems_.push_back(std::move(problem));
}

void Checker::OnStored(std::span<const coord::Mutation> mutations) {
  for (const coord::Mutation& mutation : mutations) {
    if (mutation.key.starts_with(coord::kVersionPrefix)) OnVersion(mutation);
    if (mutation.key.starts_with(coord::kLineagePrefix)) OnLineage(mutation);
  }
}

void Checker::OnVersion(const coord::Mutation& mutation) {
  if (!mutation.value) {
    // "version/<job>/<version>"
    const std::string rest = mutation.key.substr(coord::kVersionPrefix.size());
    const size_t slash = rest.find('/');
    JobView& view = jobs_[rest.substr(0, slash)];
    const auto version = ParseVersionId(rest.substr(slash + 1));
    if (version) view.tiers.erase(*version);
    return;
  }
  const auto record = coord::DecodeVersion(mutation.key, *mutation.value);
  if (!record) return Fail("a stored version cannot be decoded: " + record.error().ToString());
  JobView& view = jobs_[record->job];
  const uint32_t before = view.tiers[record->version];
  if (record->phase == coord::Phase::kRemoving) {
    const auto required = Required(view);
    // A newer version that was restored replaces the required one. So does a newer version on disk,
    // and both also when they are known only to an older copy of the store.
    const auto replaces = [&](const std::optional<VersionId>& newer, uint32_t tiers) {
      return newer && *newer > *required && (view.tiers[*newer] & tiers) != 0;
    };
    if (required && record->version == *required && before != 0 && !replaces(view.decided, ~0U) &&
        !replaces(view.copied, TierBit(Tier::kDisk))) {
      Fail(fmt::format("{} of {} is removed although it is the newest that a restore can use",
                       ToString(record->version), record->job));
    }
    if (before != 0) ++counts_.removed;
    view.tiers[record->version] = 0;
    return;
  }
  if (record->phase != coord::Phase::kCommitted) return;
  view.tiers[record->version] = record->tiers;
  if (before == 0 && record->tiers != 0 && record->adopted_from.value == 0 &&
      record->version.incarnation != view.incarnation) {
    Fail(fmt::format("{} of {} is committed although incarnation {} runs",
                     ToString(record->version), record->job, view.incarnation.value));
  }
  if (record->adopted_from.value != 0) return OnAdopted(view, *record);
  for (Tier tier : {Tier::kMemory, Tier::kPeer, Tier::kDisk}) {
    if ((record->tiers & TierBit(tier)) != 0 && (before & TierBit(tier)) == 0) {
      OnCommitted(record->job, view, record->version, record->world, tier);
    }
  }
}

void Checker::OnAdopted(JobView& view, const coord::VersionRecord& record) {
  // An adopted version has each shard somewhere, not necessarily all of them at one tier.
  for (Tier tier : {Tier::kMemory, Tier::kDisk}) {
    Promise promise{record.version, record.world, {}, {}};
    std::set<uint32_t> ranks;
    for (uint32_t rank = 0; rank < record.world; ++rank) {
      for (const std::string& node : replicas_[{{record.job, record.version, Rank{rank}}, tier}]) {
        promise.places.insert({rank, node});
        ranks.insert(rank);
      }
    }
    if (ranks.size() != record.world) continue;
    auto& newest = view.newest[tier];
    if (newest.world == 0 || newest.version < record.version) newest = std::move(promise);
  }
}

void Checker::OnCommitted(const std::string& job, JobView& view, VersionId version, uint32_t world,
                          Tier tier) {
  ++counts_.commits;
  if (tier == Tier::kPeer) ++counts_.peer_commits;
  if (tier == Tier::kDisk) ++counts_.disk_commits;
  Promise promise{version, world, {}, {}};
  // A version at peer has its shards in memory.
  const Tier where = tier == Tier::kDisk ? Tier::kDisk : Tier::kMemory;
  for (uint32_t rank = 0; rank < world; ++rank) {
    const ShardKey key{job, version, Rank{rank}};
    if (tier != Tier::kPeer && !ever_reported_.contains({key, where})) {
      Fail(fmt::format("{} is committed at {}, and no agent ever reported {}", ToString(version),
                       ToString(tier), ToString(key)));
    }
    for (const std::string& node : replicas_[{key, where}]) promise.places.insert({rank, node});
    // The coordinator may commit a version before it notices that a node is lost.
    if (tier == Tier::kPeer && replicas_[{key, where}].empty()) {
      promise.memory_lost.insert(memory_lost_[key].begin(), memory_lost_[key].end());
    }
  }
  auto& newest = view.newest[tier];
  if (newest.world == 0 || newest.version < version) newest = std::move(promise);
}

void Checker::OnLineage(const coord::Mutation& mutation) {
  if (!mutation.value) {
    // "lineage/<job>/<incarnation>": an operator has removed the job.
    const std::string rest = mutation.key.substr(coord::kLineagePrefix.size());
    return OnForgotten(rest.substr(0, rest.find('/')));
  }
  const auto record = coord::DecodeLineage(mutation.key, *mutation.value);
  if (!record) return Fail("a stored lineage cannot be decoded: " + record.error().ToString());
  JobView& view = jobs_[record->job];
  if (record->incarnation > view.incarnation) view.incarnation = record->incarnation;
  for (const coord::PlannedGroup& group : record->peers) {
    auto [found, fresh] = view.parity.try_emplace(record->incarnation, group.parity);
    if (!fresh) found->second = std::min(found->second, group.parity);
  }
  if (record->incarnation != view.incarnation || record->decision == coord::Decision::kNone) return;
  // A stored lineage may be written again later, when its own versions exist and the version that
  // it restores is removed.
  if (record->incarnation == view.decided_in) return;
  view.decided_in = record->incarnation;
  OnDecision(record->job, view,
             record->decision == coord::Decision::kVersion ? std::optional(record->restored)
                                                           : std::nullopt);
}

void Checker::OnDecision(const std::string& job, JobView& view, std::optional<VersionId> version) {
  const auto required = Required(view);
  if (demand_newest_ && required) {
    ++counts_.demanded;
    if (!version || *version < *required) {
      Fail(
          fmt::format("{}: incarnation {} restores {} although {} is committed and nothing "
                      "destroyed it",
                      job, view.incarnation.value, version ? ToString(*version) : "nothing",
                      ToString(*required)));
    }
  }
  if (version && view.tiers[*version] == 0) {
    Fail(fmt::format("{}: incarnation {} restores {}, which is not committed", job,
                     view.incarnation.value, ToString(*version)));
  }
  view.decided = version;
  // Newer versions of earlier incarnations are abandoned now.
  const auto abandoned = [&](VersionId newest) {
    return newest.incarnation < view.incarnation && (!version || newest > *version);
  };
  std::erase_if(view.newest, [&](const auto& entry) { return abandoned(entry.second.version); });
  if (view.copied && abandoned(*view.copied)) view.copied.reset();
}

bool Checker::IsUnbroken(const JobView& view, Tier tier) const {
  const Promise& promise = view.newest.at(tier);
  if (tier == Tier::kPeer) {
    auto parity = view.parity.find(promise.version.incarnation);
    return parity != view.parity.end() && promise.memory_lost.size() <= parity->second;
  }
  for (uint32_t rank = 0; rank < promise.world; ++rank) {
    const bool found =
        std::any_of(promise.places.begin(), promise.places.end(), [&](const Place& place) {
          return place.first == rank && (tier != Tier::kDisk || !tainted_.contains(place.second));
        });
    if (!found) return false;
  }
  return true;
}

std::optional<VersionId> Checker::Required(const JobView& view) const {
  std::optional<VersionId> required;
  const auto durable = view.newest.find(Tier::kDisk);
  for (const auto& [tier, promise] : view.newest) {
    auto stored = view.tiers.find(promise.version);
    const bool on_disk = stored != view.tiers.end() && (stored->second & TierBit(Tier::kDisk)) != 0;
    // Memory may be released once the version is at every tier, and retention may remove the
    // version once a newer one is on disk, even if that disk is lost later.
    const bool superseded =
        durable != view.newest.end() && promise.version < durable->second.version;
    if (tier != Tier::kDisk && (on_disk || superseded)) continue;
    if (!IsUnbroken(view, tier)) continue;
    if (!required || *required < promise.version) required = promise.version;
  }
  return required;
}

std::optional<VersionId> Checker::NewestAt(const std::string& job, Tier tier) const {
  auto found = jobs_.find(job);
  if (found == jobs_.end()) return std::nullopt;
  std::optional<VersionId> newest;
  for (const auto& [version, tiers] : found->second.tiers) {
    if ((tiers & TierBit(tier)) != 0) newest = version;
  }
  return newest;
}

bool Checker::IsOfRun(const std::string& job, VersionId version, uint64_t run) const {
  const auto& runs = jobs_.at(job).runs;
  auto found = runs.find(run);
  return found != runs.end() && found->second == version.incarnation;
}

void Checker::OnStoreReplaced(const std::map<std::string, std::string, std::less<>>& records) {
  for (auto& [name, view] : jobs_) {
    view.tiers.clear();
    view.newest.clear();
    view.parity.clear();
    view.incarnation = view.decided_in = {};
    view.restored.clear();
    view.copied.reset();
  }
  ++store_life_;
  store_lost_ = records.empty();
  if (store_lost_) runs_.clear();
  adopted_ = false;
  notified_.clear();
  for (const auto& [key, value] : records) {
    if (const auto version = coord::DecodeVersion(key, value)) {
      JobView& view = jobs_[version->job];
      const uint32_t tiers = version->phase == coord::Phase::kCommitted ? version->tiers : 0;
      view.tiers[version->version] = tiers;
      const bool on_disk = (tiers & TierBit(Tier::kDisk)) != 0;
      if (on_disk && (!view.copied || *view.copied < version->version)) {
        view.copied = version->version;
      }
    } else if (const auto lineage = coord::DecodeLineage(key, value)) {
      JobView& view = jobs_[lineage->job];
      view.incarnation = std::max(view.incarnation, lineage->incarnation);
      if (lineage->decision != coord::Decision::kNone) {
        view.decided_in = std::max(view.decided_in, lineage->incarnation);
      }
    }
  }
}

void Checker::OnForgotten(const std::string& job) {
  JobView& view = jobs_[job];
  view.tiers.clear();
  view.newest.clear();
  view.copied.reset();
  view.incarnation = view.decided_in = {};
}

bool Checker::MustRestore(const std::string& job) const {
  auto found = jobs_.find(job);
  return found != jobs_.end() && Required(found->second).has_value();
}

void Checker::OnMemoryLost(const std::string& node) {
  for (auto& [key, nodes] : replicas_) {
    if (key.second == Tier::kMemory && nodes.erase(node) != 0) memory_lost_[key.first].insert(node);
  }
  for (auto& [name, view] : jobs_) {
    for (auto& [tier, promise] : view.newest) {
      if (tier == Tier::kDisk) continue;
      promise.memory_lost.insert(node);
      std::erase_if(promise.places, [&](const Place& place) { return place.second == node; });
    }
  }
}

void Checker::OnDiskLost(const std::string& node) {
  for (auto& [key, nodes] : replicas_) {
    if (key.second == Tier::kDisk) nodes.erase(node);
  }
  for (auto& [name, view] : jobs_) {
    auto found = view.newest.find(Tier::kDisk);
    if (found == view.newest.end()) continue;
    std::erase_if(found->second.places, [&](const Place& place) { return place.second == node; });
  }
}

void Checker::OnDiskTainted(const std::string& node) { tainted_.insert(node); }

void Checker::OnReplica(const std::string& node, const ShardKey& key, Tier tier) {
  replicas_[{key, tier}].insert(node);
  ever_reported_.insert({key, tier});
}

void Checker::OnLife(const std::string& node) {
  std::erase_if(job_states_, [&](const auto& entry) { return entry.first.first == node; });
}

void Checker::OnJobState(const std::string& node, const JobState& state) {
  KnownState& known =
      job_states_.try_emplace({node, state.job}, KnownState{state, {}}).first->second;
  if (known.state.committed[Tier::kPeer] != state.committed[Tier::kPeer]) {
    known.peer_since = state.incarnation;
  }
  known.state = state;
}

void Checker::OnRemoval(const std::string& node, const RemoveVersion& removal) {
  if (removal.tier == Tier::kMemory) removals_.insert({node, removal.job, removal.version});
}

void Checker::OnReplicaRemoved(const std::string& node, const RemovedReplica& removed) {
  const auto& [key, tier, damage] = removed;
  OnReplicaGone(node, key, tier);
  const auto known = job_states_.find({node, key.job});
  const auto job = jobs_.find(key.job);
  if (tier != Tier::kMemory || !damage.empty() || known == job_states_.end()) return;
  const auto& [state, peer_since] = known->second;
  if (state.forget || job == jobs_.end()) return;
  // A restart from an older version abandons newer ones.
  if (removals_.contains({node, key.job, key.version})) return;
  // The commit may not be known to the node yet, and may be one of the disks. An incarnation
  // without peers keeps no versions of earlier ones.
  const bool disk_has_it = replicas_[{key, Tier::kDisk}].contains(node);
  const uint64_t later = state.incarnation.value - key.version.incarnation.value;
  const bool keeps = later == 0 || (later == 1 && state.group);
  const auto newest = job->second.newest.find(Tier::kPeer);
  const bool committed = newest != job->second.newest.end() &&
                         newest->second.version == key.version && keeps && !disk_has_it;
  if (state.committed[Tier::kPeer] != key.version && !committed) return;
  // Disks may commit a version of an earlier incarnation while a node frees its parity in memory
  // for that of the current one. The node has got the job state with the commit, but has not
  // applied it yet, or reports late what it freed before. Its disk still protects the version.
  if (IsParity(key.rank) && disk_has_it && peer_since > key.version.incarnation) return;
  // Memory that no trainer uses is reassigned once its versions are on disk.
  const bool on_disk = state.committed[Tier::kDisk] && *state.committed[Tier::kDisk] >= key.version;
  if (on_disk && (state.phase != JobPhase::kRunning || !IsParity(key.rank))) return;
  Fail(fmt::format("{} frees the memory of {}, which is of the newest version at peer", node,
                   ToString(key)));
}

void Checker::OnReplicaGone(const std::string& node, const ShardKey& key, Tier tier) {
  auto found = replicas_.find({key, tier});
  if (found != replicas_.end()) found->second.erase(node);
}

void Checker::OnRestored(const std::string& job, uint64_t run, uint64_t life, uint32_t rank,
                         std::optional<VersionId> version, std::optional<uint64_t> saved_by) {
  ++(version ? counts_.restores : counts_.fresh);
  // The decision is of an earlier life of the store, where the numbers name other starts.
  if (life != store_life_) return;
  JobView& view = jobs_[job];
  auto [found, first] = view.restored.try_emplace(run, Restored{version, saved_by});
  if (!first && (found->second.version != version || found->second.saved_by != saved_by)) {
    const auto name = [](const std::optional<VersionId>& one) {
      return one ? ToString(*one) : std::string("nothing");
    };
    Fail(fmt::format("{}, run {}: rank {} restored {}, another rank {}", job, run, rank,
                     name(version), name(found->second.version)));
  }
  if (version && store_lost_ && !adopted_ && !runs_.contains({job, *saved_by})) {
    Fail(
        fmt::format("{}, run {}: rank {} restored {}, which run {} saved before the store was "
                    "lost",
                    job, run, rank, ToString(*version), *saved_by));
  }
}

void Checker::OnNotified(pid_t pid, VersionId version, Tier tier) {
  VersionId& newest = notified_[{pid, tier}];
  if (version < newest) {
    Fail(fmt::format("trainer {} got a notice that {} is the newest at {}, after {}", pid,
                     ToString(version), ToString(tier), ToString(newest)));
  }
  newest = std::max(newest, version);
}

}  // namespace holdfast::simulation
