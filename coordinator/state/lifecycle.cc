#include "coordinator/state/lifecycle.h"

#include <algorithm>

#include "coordinator/state/copies.h"
#include "coordinator/state/flush.h"
#include "coordinator/state/restore_plan.h"
#include "coordinator/state/survivability.h"
#include "coordinator/state/versions.h"

namespace holdfast::coord {
namespace {
// Trainers outlive their agent: trainers of a lost node count as ended only after this time.
constexpr auto kLostTrainers = std::chrono::seconds(30);

bool HasTrainers(const ReadContext& context, const Job& job) {
  if (context.cluster.active_runs.count(job.name) != 0) return true;
  return std::any_of(job.connected.begin(), job.connected.end(), [&context](const auto& entry) {
    const Node& node = context.cluster.nodes[entry.second];
    return node.attached || context.at.now - node.lost_at < kLostTrainers;
  });
}

/// Whether a restart needs nothing from memory: the newest version is on disk with its parity.
bool MayRelease(const Job& job) {
  // A shared tier holds up no release: its file system may hang, and copies are made from disk.
  if (std::any_of(job.repairs.begin(), job.repairs.end(),
                  [](const auto& entry) { return !IsShared(entry.first.tier); })) {
    return false;
  }
  const auto newest = NewestOfNodes(job);
  if (!newest) return true;
  const VersionState& version = job.versions.at(*newest);
  if (!version.committed_at(Tier::kDisk) || version.held_at(Tier::kDisk) != version.world) {
    return false;
  }
  const GroupIndex* groups = job.groups_of(newest->incarnation);
  return groups == nullptr || version.parity_held_at(Tier::kDisk) == groups->members.size();
}

void ReleaseMemory(Context& context, Job& job) {
  job.released = true;
  job.repair_due = true;
  job.job_state_changed = true;
  job.changed = true;
  // No trainer is left to complete pending versions, and their slots are released.
  for (auto& [id, version] : job.versions) {
    if (version.phase == Phase::kPending) AbortVersion(context, job, version, true);
  }
}
}  // namespace

void OnRanks(Context& context, NodeIndex index, const std::vector<LocalRank>& ranks) {
  Node& node = context.cluster.nodes[index];
  if (node.ranks == ranks) return;
  // Only trainers of the current incarnation count.
  const auto job_of = [&context](const LocalRank& rank) -> Job* {
    auto found = context.cluster.jobs.find(rank.job);
    const bool current =
        found != context.cluster.jobs.end() && found->second.incarnation == rank.incarnation;
    return current && rank.rank.value < found->second.lineage().world ? &found->second : nullptr;
  };
  for (const LocalRank& rank : node.ranks) {
    Job* job = job_of(rank);
    if (job == nullptr) continue;
    auto connected = job->connected.find(rank.rank);
    if (connected != job->connected.end() && connected->second == index) {
      job->connected.erase(connected);
      job->alive_at = context.at.now;
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
    if (job->phase != JobPhase::kRunning) SetPhase(context, *job, JobPhase::kRunning);
  }
}

void OnTierWanted(Context& context, const TierWanted& wanted) {
  auto found = context.cluster.jobs.find(wanted.job);
  if (found == context.cluster.jobs.end() || found->second.versions.count(wanted.version) == 0) {
    return;
  }
  Job& job = found->second;
  job.wanted = std::max(job.wanted, std::optional(wanted.version));
  std::optional<VersionId>& copy = job.copies[wanted.tier].wanted;
  copy = std::max(copy, std::optional(wanted.version));
  job.repair_due = true;
}

void OnRunStateChanged(Context& context, const RunStateChanged& event) {
  if (event.active) {
    context.cluster.active_runs.insert(event.job);
    context.cluster.ended_runs.erase(event.job);
    return;
  }
  context.cluster.active_runs.erase(event.job);
  context.cluster.ended_runs.insert(event.job);
  auto found = context.cluster.jobs.find(event.job);
  if (found == context.cluster.jobs.end() || !event.finished || found->second.finished) return;
  found->second.finished = true;
  StoreJob(context, found->second);
}

void SetPhase(Context& context, Job& job, JobPhase phase) {
  if (phase == job.phase && !(phase == JobPhase::kRunning && job.finished)) return;
  job.phase = phase;
  job.finished = phase == JobPhase::kFinished;
  job.released = false;
  job.changed = true;
  job.job_state_changed = true;
  job.repair_due = true;
  if (phase == JobPhase::kRunning) {
    job.alive_at = context.at.now;
    job.ended_wall_nanos = 0;
  } else {
    job.ended_at = context.at.now;
    if (job.ended_wall_nanos == 0) job.ended_wall_nanos = context.at.wall_nanos;
  }
  StoreJob(context, job);
}

void AdvanceLifecycle(Context& context, Job& job) {
  if (HasTrainers(context, job)) {
    job.alive_at = context.at.now;
  } else if (context.at.now - job.alive_at >= context.options.end_grace &&
             BarrierOpen(context, job)) {
    const bool all_left = job.goodbyes.size() == job.lineage().world;
    const bool finished = job.finished || all_left || job.phase == JobPhase::kFinished;
    SetPhase(context, job, finished ? JobPhase::kFinished : JobPhase::kEnded);
  }
  if (job.phase != JobPhase::kRunning && !job.released) {
    const auto after = job.phase == JobPhase::kFinished ? context.options.release_after
                                                        : context.options.release_dead_after;
    if (context.at.now - job.ended_at >= after && MayRelease(job)) ReleaseMemory(context, job);
  }
  if (!job.released) StartFlush(context, job);
  if (HasCopiesDue(context, job)) job.repair_due = true;
}

}  // namespace holdfast::coord
