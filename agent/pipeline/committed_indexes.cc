#include "agent/pipeline/committed_indexes.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "base/log.h"

namespace holdfast::agent {
namespace {
constexpr std::chrono::seconds kPauseLeast(1);
constexpr int kPausesPerWork = 99;  // so that the work takes one hundredth of the time
}  // namespace

void CommittedIndexes::SetJobState(const JobState& state) {
  MutexLock lock(mutex_);
  jobs_[state.job].newest = state.committed[Tier::kDisk];
}

void CommittedIndexes::Drop(const std::string& job) {
  MutexLock lock(mutex_);
  jobs_.erase(job);
}

void CommittedIndexes::Tick() {
  std::string job;
  VersionId version;
  {
    MutexLock lock(mutex_);
    if (running_ || clock_.Now() < next_) return;
    const auto due = std::ranges::find_if(jobs_, [](const auto& entry) {
      return entry.second.newest && entry.second.newest != entry.second.made;
    });
    if (due == jobs_.end()) return;
    job = due->first;
    version = *due->second.newest;
    due->second.made = version;
    running_ = true;
  }
  if (background_.Post([this, job, version] { Make(job, version); })) return;
  MutexLock lock(mutex_);
  running_ = false;
}

void CommittedIndexes::Make(const std::string& job, VersionId version) {
  const Clock::TimePoint begin = clock_.Now();
  IndexedVersion of{job, version, 0, {}};
  std::vector<IndexedShard> shards;  // ascending by rank, as a node that restores requests them
  for (const StoredShard& shard : volume_.List()) {
    const ShardIdentity& identity = shard.identity;
    if (identity.job != job || identity.version != version || IsParity(identity.rank)) continue;
    of.world = identity.world;
    shards.push_back({identity.rank, shard.digest});
  }
  const Status made = shards.empty() ? Status::Ok() : indexes_.MakeForCommit(of, shards);
  if (!made.ok()) {
    Log(LogLevel::kDebug, "IndexNotMade",
        {Kv("job", job), Kv("version", ToString(version)), Kv("error", made.ToString())});
  }
  const Clock::TimePoint end = clock_.Now();
  MutexLock lock(mutex_);
  running_ = false;
  next_ = end + std::max<Clock::Duration>(kPauseLeast, kPausesPerWork * (end - begin));
}

}  // namespace holdfast::agent
