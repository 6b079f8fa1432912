#include <fmt/format.h>

#include <algorithm>

#include "coordinator/state/peers.h"
#include "coordinator/state/state.h"

// A job's phase: whether it has trainers, when its newest version is flushed to every tier, and
// when its memory is released.

namespace holdfast::coord {
namespace {
// Trainers outlive their agent: trainers of a lost node count as ended only after this time.
constexpr auto kLostTrainers = std::chrono::seconds(30);
// A running job is always a little behind: operators see a version that is not durable only after
// this many times `flush_after`.
constexpr int kBehindFactor = 10;
// A target that makes no progress for this many times `flush_after` no longer delays a flush.
constexpr int kStuckFactor = 30;

bool IsHeldAt(const RankShard& shard, Tier tier) {
  return std::any_of(shard.replicas.begin(), shard.replicas.end(),
                     [tier](const Replica& replica) { return replica.tier == tier; });
}

/// Whether the writers of `target` have a version from the target on that is not resolved on disk.
bool IsDiskTargetInProgress(const Job& job) {
  auto it = job.versions.lower_bound({job.incarnation, job.disk_target.step()});
  return std::any_of(it, job.versions.end(), [](const auto& entry) {
    const VersionState& version = entry.second;
    const bool open = ((version.tiers | version.failed_tiers) & TierBit(Tier::kDisk)) == 0;
    return open && (version.phase == Phase::kPending || version.committed());
  });
}
}  // namespace

/// `ranks` are all trainers that the node reports.
void State::OnRanks(NodeIndex index, const std::vector<LocalRank>& ranks) {
  Node& node = nodes_[index];
  if (node.ranks == ranks) return;
  // Only trainers of the current incarnation count.
  const auto job_of = [this](const LocalRank& rank) -> Job* {
    auto found = jobs_.find(rank.job);
    const bool current = found != jobs_.end() && found->second.incarnation == rank.incarnation;
    return current && rank.rank.value < found->second.lineage().world ? &found->second : nullptr;
  };
  for (const LocalRank& rank : node.ranks) {
    Job* job = job_of(rank);
    if (job == nullptr) continue;
    auto connected = job->connected.find(rank.rank);
    if (connected != job->connected.end() && connected->second == index) {
      job->connected.erase(connected);
      job->alive_at = at_.now;
    }
  }
  node.ranks = ranks;
  for (const LocalRank& rank : ranks) {
    Job* job = job_of(rank);
    if (job == nullptr) continue;
    if (rank.goodbye) {
      job->goodbyes.insert(rank.rank);
      continue;
    }
    job->connected[rank.rank] = index;
    job->goodbyes.erase(rank.rank);
    if (job->phase != JobPhase::kRunning) SetPhase(*job, JobPhase::kRunning);
  }
}

void State::OnTierWanted(const TierWanted& wanted) {
  auto found = jobs_.find(wanted.job);
  if (found == jobs_.end() || found->second.versions.count(wanted.version) == 0) return;
  found->second.wanted = std::max(found->second.wanted, wanted.version);
  found->second.repair_due = true;
}

void State::On(const RunStateChanged& event) {
  if (event.active) {
    active_runs_.insert(event.job);
    return;
  }
  active_runs_.erase(event.job);
  auto found = jobs_.find(event.job);
  if (found == jobs_.end() || !event.finished || found->second.finished) return;
  found->second.finished = true;
  effects_.emplace_back(PutJob{RecordOf(found->second)});
}

void State::On(const RetentionSet& event) {
  auto found = jobs_.find(event.job);
  if (found == jobs_.end()) {
    return Answer(event.request, NotFoundError(fmt::format("no job '{}'", event.job)));
  }
  Job& job = found->second;
  job.keep_last = event.keep_last;
  job.keep_every = event.keep_last == 0 ? 0 : event.keep_every;
  job.retention_due = true;
  job.changed = true;
  effects_.emplace_back(PutJob{RecordOf(job)});
  Answer(event.request, Status::Ok());
}

bool State::HasTrainers(const Job& job) const {
  if (active_runs_.count(job.name) != 0) return true;
  return std::any_of(job.connected.begin(), job.connected.end(), [this](const auto& entry) {
    const Node& node = nodes_[entry.second];
    return node.attached || at_.now - node.lost_at < kLostTrainers;
  });
}

void State::SetPhase(Job& job, JobPhase phase) {
  if (phase == job.phase && !(phase == JobPhase::kRunning && job.finished)) return;
  job.phase = phase;
  job.finished = phase == JobPhase::kFinished;
  job.released = false;
  job.changed = true;
  job.job_state_changed = true;
  job.repair_due = true;
  if (phase == JobPhase::kRunning) {
    job.alive_at = at_.now;
    job.ended_wall_nanos = 0;
  } else {
    job.ended_at = at_.now;
    if (job.ended_wall_nanos == 0) job.ended_wall_nanos = at_.wall_nanos;
  }
  effects_.emplace_back(PutJob{RecordOf(job)});
}

/// Updates the job's phase after time has passed.
void State::AdvanceLife(Job& job) {
  if (HasTrainers(job)) {
    job.alive_at = at_.now;
  } else if (at_.now - job.alive_at >= options_.end_grace && BarrierOpen(job)) {
    const bool all_left = job.goodbyes.size() == job.lineage().world;
    const bool finished = job.finished || all_left || job.phase == JobPhase::kFinished;
    SetPhase(job, finished ? JobPhase::kFinished : JobPhase::kEnded);
  }
  if (job.phase != JobPhase::kRunning && !job.released) {
    const auto after =
        job.phase == JobPhase::kFinished ? options_.release_after : options_.release_dead_after;
    if (at_.now - job.ended_at >= after && MayRelease(job)) Release(job);
  }
  if (!job.released && VersionToFlush(job) != nullptr) job.repair_due = true;
}

/// Whether a restart needs nothing from memory: the newest version is on disk with its parity.
bool State::MayRelease(const Job& job) const {
  if (!job.repairs.empty()) return false;
  const VersionId newest =
      std::max(NewestCommitted(job, Tier::kMemory), NewestCommitted(job, Tier::kDisk));
  if (newest.incarnation.value == 0) return true;
  const VersionState& version = job.versions.at(newest);
  if (!version.committed_at(Tier::kDisk) || version.held_at(Tier::kDisk) != version.world) {
    return false;
  }
  const GroupIndex* groups = job.groups_of(newest.incarnation);
  return groups == nullptr || version.parity_held_at(Tier::kDisk) == groups->members.size();
}

void State::Release(Job& job) {
  job.released = true;
  job.repair_due = true;
  job.job_state_changed = true;
  job.changed = true;
  // No trainer is left to complete pending versions, and their slots are released.
  for (auto& [id, version] : job.versions) {
    if (version.phase == Phase::kPending) Abort(job, version, true);
  }
}

/// Whether no version newer than `newest` is expected, so that `newest` must be flushed.
bool State::IsQuiet(const Job& job, VersionId newest) const {
  if (job.phase != JobPhase::kRunning || job.wanted == newest) return true;
  const auto idle = at_.now - job.newest_at;
  if (idle < options_.flush_after) return false;
  // While the disks write a version, the next one is selected when they have finished.
  const bool stuck = idle >= kStuckFactor * options_.flush_after;
  if (IsDiskTargetInProgress(job) && !stuck) return false;
  // While a job runs, nodes write only the steps that they are configured to write.
  return std::all_of(job.nodes_now.begin(), job.nodes_now.end(), [&](NodeIndex index) {
    const uint64_t every = nodes_[index].disk_every;
    return every == 0 || newest.step.value % every == 0;
  });
}

/// Whether the version could be committed at peer, since its groups can build its parity in memory,
/// and is not.
bool State::LacksPeerTier(const Job& job, const VersionState& version) {
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

VersionState* State::VersionToFlush(Job& job) {
  const VersionId newest =
      std::max(NewestCommitted(job, Tier::kMemory), NewestCommitted(job, Tier::kDisk));
  if (newest.incarnation.value == 0) return nullptr;
  VersionState& version = job.versions.at(newest);
  if (version.committed_at(Tier::kDisk) && !LacksPeerTier(job, version)) return nullptr;
  return IsQuiet(job, newest) ? &version : nullptr;
}

/// Adds what a flush of the newest version needs to `missing`: ranks' shards on disk, from memory,
/// then parity. The targets of the tiers select only newer versions, and none follows.
void State::PlanFlush(Job& job, std::map<RepairKey, Repair>& missing) {
  VersionState* version = VersionToFlush(job);
  if (version == nullptr) return;
  // The node may already be writing the shard.
  const auto not_before = at_.now + options_.flush_after;
  const auto want = [&](NodeIndex node, Rank rank, Tier tier) {
    Repair repair;
    repair.target = node;
    repair.not_before = not_before;
    missing.emplace(RepairKey{version->id, rank, tier}, repair);
  };
  // A tier that failed is tried again: the disk may have been full, or a member away.
  const auto retry = [&](Tier tier) {
    if ((version->failed_tiers & TierBit(tier)) == 0) return;
    version->failed_tiers &= ~TierBit(tier);
    Store(job, *version, 0);
  };
  if (!version->committed_at(Tier::kDisk)) {
    retry(Tier::kDisk);
    for (uint32_t rank = 0; rank < version->world; ++rank) {
      const RankShard& shard = version->ranks[rank];
      if (IsHeldAt(shard, Tier::kDisk)) continue;
      auto replica = std::find_if(shard.replicas.begin(), shard.replicas.end(),
                                  [](const Replica& one) { return one.tier == Tier::kMemory; });
      if (replica != shard.replicas.end()) {
        want(replica->node, Rank{rank}, Tier::kDisk);
      } else if (CanDecode(job, *version, Rank{rank})) {
        const GroupIndex& groups = *job.groups_of(version->id.incarnation);
        const NodeIndex node = groups.members[groups.by_rank[rank]].node;
        if (nodes_[node].attached) want(node, Rank{rank}, Tier::kDisk);
      }
    }
  }
  if (!LacksPeerTier(job, *version)) return;
  retry(Tier::kPeer);
  const GroupIndex& groups = *job.groups_of(version->id.incarnation);
  for (uint32_t number = 0; number < groups.members.size(); ++number) {
    if (HasParity(job, *version, number, TierBit(Tier::kMemory))) continue;
    const NodeIndex node = groups.members[number].node;
    if (nodes_[node].attached) want(node, ParityRank(number), Tier::kMemory);
  }
}

/// Returns why the newest version of a job is not durable although no newer one follows; empty if
/// it is at every tier.
std::string State::WhyNotDurable(const Job& job) const {
  const VersionId newest =
      std::max(NewestCommitted(job, Tier::kMemory), NewestCommitted(job, Tier::kDisk));
  if (newest.incarnation.value == 0 || !IsQuiet(job, newest)) return "";
  const bool runs = job.phase == JobPhase::kRunning;
  if (runs && at_.now - job.newest_at < kBehindFactor * options_.flush_after) return "";
  const VersionState& version = job.versions.at(newest);
  std::string lacks;
  if (!version.committed_at(Tier::kDisk)) lacks = "on disk";
  if (job.groups_of(newest.incarnation) != nullptr && !version.committed_at(Tier::kPeer)) {
    lacks += lacks.empty() ? "at tier peer" : " and not at tier peer";
  }
  if (lacks.empty()) return "";
  return fmt::format("version {} is the newest and not {}", ToString(newest), lacks);
}

}  // namespace holdfast::coord
