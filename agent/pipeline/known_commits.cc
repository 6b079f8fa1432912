#include "agent/pipeline/known_commits.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <tuple>

#include "base/log.h"
#include "coordinator/contract/limits.h"

namespace holdfast::agent {
namespace {
constexpr std::chrono::seconds kPause(2);

static_assert(kCommitsMax == kCommitsListedMax);
/// Returns the commits of the newest versions, in ascending order. The file and an attach have room
/// for kCommitsMax; a coordinator drops the last ones of a longer list.
std::vector<VersionCommit> Newest(const std::set<VersionCommit>& known) {
  std::vector<VersionCommit> newest(known.begin(), known.end());
  if (newest.size() <= kCommitsMax) return newest;
  const auto end = newest.begin() + kCommitsMax;
  std::ranges::nth_element(newest, end, std::ranges::greater(), &VersionCommit::version);
  newest.erase(end, newest.end());
  std::ranges::sort(newest);
  return newest;
}
}  // namespace

void KnownCommits::Load() {
  auto read = volume_.ReadCommits();
  MutexLock lock(mutex_);
  if (!read) {
    writable_ = read.error().code() != ErrorCode::kUnsupported;
    Log(LogLevel::kWarn, "CommitsNotRead",
        {Kv("error", read.error().ToString()),
         Kv("effect",
            "if the coordinator loses its store, this node does not know which versions "
            "were committed before")});
    return;
  }
  known_ = written_ = {read->begin(), read->end()};
  Publish();
}

void KnownCommits::Add(const JobState& state) {
  MutexLock lock(mutex_);
  bool added = false;
  for (const VersionCommit& commit : state.commits) {
    if (commit.life.value == 0) continue;
    added = known_.insert(commit).second || added;
  }
  named_[state.job] = state.commits;
  if (!added) return;
  changed_ = true;
  Publish();
}

void KnownCommits::Drop(const std::string& job) {
  MutexLock lock(mutex_);
  if (named_.erase(job) != 0) changed_ = true;
}

void KnownCommits::Tick() {
  {
    MutexLock lock(mutex_);
    const Clock::TimePoint now = clock_.Now();
    if (!changed_ || writing_ || now < next_) return;
    next_ = now + kPause;
    writing_ = true;
  }
  if (background_.Post([this] { Write(); })) return;
  MutexLock lock(mutex_);
  writing_ = false;
}

void KnownCommits::Flush() {
  {
    MutexLock lock(mutex_);
    if (!changed_) return;
    writing_ = true;
  }
  Write();
}

std::set<KnownCommits::Version> KnownCommits::VersionsHere() const {
  std::set<Version> here;
  for (const StoredShard& shard : volume_.List()) {
    here.emplace(shard.identity.job, shard.identity.version);
  }
  ranks_.ForEach([&here](RankPipeline& rank) {
    const std::string& job = rank.segment.owner().job;
    for (const auto& [version, verified] : rank.slots.view().SealedVersions()) {
      here.emplace(job, version);
    }
  });
  return here;
}

void KnownCommits::Write() {
  const std::set<Version> here = VersionsHere();
  std::vector<VersionCommit> commits;
  bool same = false;
  {
    MutexLock lock(mutex_);
    changed_ = false;
    std::erase_if(known_, [&](const VersionCommit& commit) HOLDFAST_REQUIRES(mutex_) {
      if (here.contains({commit.job, commit.version})) return false;
      const auto named = named_.find(commit.job);
      return named == named_.end() ||
             std::ranges::find(named->second, commit) == named->second.end();
    });
    commits = Newest(known_);
    known_ = {commits.begin(), commits.end()};
    Publish();
    same = known_ == written_ || !writable_;
  }
  const Status status = same ? Status::Ok() : volume_.WriteCommits(commits);
  MutexLock lock(mutex_);
  writing_ = false;
  if (status.ok()) {
    failed_ = false;
    if (!same) written_ = {commits.begin(), commits.end()};
    return;
  }
  changed_ = true;
  if (std::exchange(failed_, true)) return;
  Log(LogLevel::kWarn, "CommitsNotStored",
      {Kv("error", status.ToString()),
       Kv("effect", "after a restart this node does not know which versions were committed")});
}

void KnownCommits::Publish() { link_.SetKnownCommits(Newest(known_)); }

}  // namespace holdfast::agent
