#include "agent/pipeline/departure.h"

#include <algorithm>
#include <chrono>
#include <set>

#include "base/ids.h"

namespace holdfast::agent {
namespace {
constexpr std::chrono::milliseconds kPoll(10);
// How long the coordinator has to name a version, or to commit one that is sealed here.
constexpr std::chrono::seconds kSettle(1);
// After this many named versions without a commit on disk, the disks do not take any.
constexpr size_t kVersionsMax = 4;

/// The progress of all jobs with memory on this node.
struct Progress {
  std::map<std::string, DepartedJob> jobs;
  bool ordered = false;  // the coordinator has named a version that is not on disk yet
  bool writing = false;
  std::vector<std::optional<VersionId>> seen;  // differs after each change
  std::vector<VersionId> named;

  bool reached() const {
    return std::ranges::all_of(jobs, [](const auto& job) { return job.second.reached(); });
  }
  bool copied() const {
    return std::ranges::all_of(jobs, [](const auto& job) { return job.second.copied(); });
  }
};

/// `goals`: those of the jobs; empty: the newest versions in memory become the goals.
Progress ProgressOf(RankRegistry& ranks, const std::map<std::string, DepartedJob>& goals) {
  Progress progress;
  ranks.ForEach([&](RankPipeline& rank) {
    const auto owner = rank.segment.owner();
    if (IsParity(owner.rank)) return;
    const DiskSlots::Progress own = rank.slots.disk().progress();
    DepartedJob& job = progress.jobs[owner.job];
    job.memory = std::max(job.memory, own.memory);
    job.disk = std::max(job.disk, own.disk);
    job.shared = std::max(job.shared, own.shared);
    const auto known = goals.find(owner.job);
    if (known != goals.end()) {
      job.goal = known->second.goal;
    } else {
      job.goal = std::max({job.goal, own.sealed, own.memory});
    }
    progress.writing = progress.writing || own.writing;
    progress.ordered = progress.ordered || own.flush > own.disk;
    if (own.flush) progress.named.push_back(*own.flush);
    for (const auto& version : {own.memory, own.disk, own.shared, own.flush}) {
      progress.seen.push_back(version);
    }
  });
  return progress;
}
}  // namespace

bool Departure::Pause(Clock::TimePoint deadline, const Interrupted& interrupted) {
  if (parts_.clock.Now() >= deadline || (interrupted && interrupted())) return false;
  parts_.clock.SleepFor(kPoll);
  return true;
}

void Departure::AwaitSaves(Clock::TimePoint deadline, const Interrupted& interrupted) {
  using Save = std::pair<RankKey, VersionId>;
  const auto saves = [this] {
    std::set<Save> found;
    parts_.ranks.ForEach([&](RankPipeline& rank) {
      const auto owner = rank.segment.owner();
      const auto saving = rank.slots.disk().progress().saving;
      if (saving) found.insert({{owner.job, owner.rank}, *saving});
    });
    return found;
  };
  const std::set<Save> begun = saves();
  const auto pending = [&] {
    const std::set<Save> now = saves();
    return std::ranges::any_of(begun, [&](const Save& save) { return now.contains(save); });
  };
  while (pending() && Pause(deadline, interrupted)) {
  }
}

std::map<std::string, DepartedJob> Departure::Run(int64_t grace_ms,
                                                  const Interrupted& interrupted) {
  const Clock::TimePoint begun = parts_.clock.Now();
  const Clock::TimePoint deadline = begun + std::chrono::milliseconds(grace_ms);
  // A trainer that stops in the middle of a copy must leave time to write what it saved before.
  AwaitSaves(begun + std::chrono::milliseconds(grace_ms / 2), interrupted);
  Progress progress = ProgressOf(parts_.ranks, {});
  parts_.link.AnnounceDeparture();
  parts_.ranks.ForEach([](RankPipeline& rank) { rank.slots.disk().StartFlush(); });
  const Clock::TimePoint announced = parts_.clock.Now();
  Clock::TimePoint changed = announced;
  std::set<VersionId> named;
  do {
    Progress now = ProgressOf(parts_.ranks, progress.jobs);
    if (now.seen != progress.seen) changed = parts_.clock.Now();
    progress = std::move(now);
    named.insert(progress.named.begin(), progress.named.end());
    if (parts_.clock.Now() - announced >= kSettle) {
      // What is not committed by now never will be: another rank did not save it.
      for (auto& [name, job] : progress.jobs) job.goal = std::min(job.goal, job.memory);
    }
    const bool settled = parts_.clock.Now() - changed >= kSettle;
    if (progress.reached()) {
      const bool copies = parts_.preparer.OldestCopyMs() > 0;
      if (!parts_.shared_tiers || progress.copied() || (settled && !copies)) break;
    } else if (!parts_.link.IsAttached()) {
      if (!progress.writing) break;
    } else if ((settled && !progress.ordered && !progress.writing) || named.size() > kVersionsMax) {
      break;
    }
  } while (Pause(deadline, interrupted));
  return progress.jobs;
}

}  // namespace holdfast::agent
