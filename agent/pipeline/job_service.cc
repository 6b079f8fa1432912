#include "agent/pipeline/job_service.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "base/log.h"

namespace holdfast::agent {
namespace {
constexpr size_t kJobsMax = 4096;
constexpr std::chrono::seconds kRejoinPause(2);
constexpr std::chrono::minutes kRejoinPauseMost(10);
}  // namespace

void JobService::Apply(JobState state) {
  if (state.forget) return Forget(state);
  const JobState* known = parts_.jobs.Find(state.job);
  if (known == nullptr && parts_.jobs.size() >= kJobsMax) {
    Log(LogLevel::kError, "TooManyJobs", {Kv("job", state.job)});
    return;
  }
  if (state.release) {
    state.group.reset();  // build no more parity for it
    parts_.release.Start(state.job);
  } else {
    parts_.release.Cancel(state.job);
  }
  parts_.commits.Add(state);
  parts_.indexes.SetJobState(state);
  const JobState before = known == nullptr ? JobState{} : *known;
  const JobState& now = parts_.jobs.Set(std::move(state));
  parts_.peer_source.SetIncarnation(now.job, now.incarnation);
  // The parity keeper gets the job state before the ranks do: it needs the plan of a version before
  // a rank has that version for its peers.
  parts_.parity.SetJobState(now);
  ApplyToRanks(now);
  RepeatJoins(now);
  parts_.trainers.OnJobState(before, now);
}

void JobService::ApplyToRanks(const JobState& job) {
  const std::string fenced =
      fmt::format("incarnation {} of {} has started", job.incarnation.value, job.job);
  parts_.ranks.SetJobState(job);
  std::vector<ShardKey> not_saved;
  parts_.ranks.ForEach([&](RankPipeline& rank) {
    const SegmentOwner& owner = rank.segment.owner();
    if (owner.job != job.job) return;
    for (VersionId version :
         rank.slots.saves().AbortOlder(job.incarnation, {ErrorCode::kFenced, fenced})) {
      not_saved.push_back({job.job, version, owner.rank});
    }
  });
  for (const ShardKey& key : not_saved) parts_.saves.ReportNotSaved(key, fenced);
}

/// Repeats the joins of a job without a parity group. A coordinator that restarted while ranks
/// joined has lost their slot sizes and cannot plan a group without them. The interval doubles each
/// time, since a group can be absent for other reasons.
void JobService::RepeatJoins(const JobState& job) {
  if (job.group) {
    unprotected_.erase(job.job);
    return;
  }
  const Clock::TimePoint now = parts_.clock.Now();
  Unprotected& known = unprotected_[job.job];
  if (known.incarnation != job.incarnation) {
    known = {job.incarnation, now + kRejoinPause, kRejoinPause};
  }
  if (now < known.next) return;
  known.pause = std::min<Clock::Duration>(2 * known.pause, kRejoinPauseMost);
  known.next = now + known.pause;
  parts_.joins.RepeatJoins(job.job, job.incarnation);
}

void JobService::ApplyLife(const SeenLife& seen) {
  const LifeId before = parts_.ranks.SetLife(seen.life, seen.unlabeled);
  parts_.shared.SetLife(seen.life);
  parts_.groups.SetLife(seen);
  if (before.value == 0 || before == seen.life) return;
  Log(LogLevel::kWarn, "StoreLifeChanged",
      {Kv("life", ToString(seen.life)), Kv("before", ToString(before)),
       Kv("effect", "trainers join again; replicas of the earlier life are kept")});
  parts_.trainers.EndAll("the life of the coordinator's store has changed");
  parts_.processes.ForgetIncarnations();
  parts_.ranks.ForgetJobStates();
  for (const auto& [name, job] : parts_.jobs.TakeAll()) {
    parts_.commits.Drop(name);
    JobState nothing;
    nothing.job = name;
    parts_.parity.SetJobState(nothing);
  }
  parts_.joins.ForgetAll();
  parts_.release.CancelAll();
  unprotected_.clear();
}

void JobService::Remove(const RemoveVersion& remove) {
  if (remove.tier == Tier::kDisk) parts_.disks.RemoveVersion(remove.job, remove.version);
  if (IsShared(remove.tier)) {
    parts_.shared.RemoveVersion(remove.tier, remove.job, remove.version);
  }
  if (remove.tier != Tier::kMemory) return;
  for (const RankLease& rank : parts_.ranks.OfJob(remove.job)) {
    if (!rank->slots.pins().Discard(remove.version).ok()) continue;
    const Rank number = rank->segment.owner().rank;
    parts_.link.Report(RemovedReplica{{remove.job, remove.version, number}, Tier::kMemory});
    parts_.ranks.NotifySlotsChanged(remove.job, number);
  }
}

/// Removes all shards of incarnations up to that of `state`, also from disk.
void JobService::Forget(const JobState& state) {
  const std::string& job = state.job;
  for (const RankLease& rank : parts_.ranks.OfJob(job)) {
    const Rank number = rank->segment.owner().rank;
    for (const auto& [version, verified] : rank->slots.view().SealedVersions()) {
      if (version.incarnation > state.incarnation || !rank->slots.pins().Discard(version).ok())
        continue;
      parts_.link.Report(RemovedReplica{{job, version, number}, Tier::kMemory});
    }
  }
  const JobState* known = parts_.jobs.Find(job);
  if (known == nullptr || known->incarnation <= state.incarnation) parts_.release.Start(job);
  parts_.disks.RemoveJob(job, state.incarnation);
  parts_.shared.RemoveJob(job, state.incarnation);
}

void JobService::Tick() {
  parts_.groups.Tick();
  parts_.commits.Tick();
  parts_.indexes.Tick();
  parts_.shared.WarnOfHang(parts_.preparer.OldestCopyMs());
  parts_.ranks.ForEach([this](RankPipeline& rank) {
    const SegmentOwner& owner = rank.segment.owner();
    if (owner.rank == Rank{0}) parts_.shared.ListIfDue(owner.job);
    if (!IsParity(owner.rank)) return;
    // Parity memory is in use as long as the job that it protects runs.
    const JobState* job = parts_.jobs.Find(owner.job);
    if (job != nullptr && job->phase != JobPhase::kRunning) rank.connected.store(false);
  });
  for (const std::string& job : parts_.release.Advance()) Drop(job);
}

void JobService::Drop(const std::string& job) {
  parts_.jobs.Erase(job);
  parts_.ranks.ForgetJobState(job);
  unprotected_.erase(job);
  parts_.joins.ForgetJob(job);
  parts_.processes.ForgetGoodbyes(job);
  parts_.commits.Drop(job);
  parts_.peer_source.Forget(job);
  parts_.indexes.Drop(job);
  parts_.shared.Forget(job);
  parts_.warnings.Set("parity/" + job, "");
}

}  // namespace holdfast::agent
