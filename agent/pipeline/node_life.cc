#include <fmt/format.h>

#include <algorithm>

#include "agent/pipeline/node.h"
#include "storage/base/log.h"

// The lifecycle of jobs on this node: reports the trainers, frees the memory of jobs that are over
// and removes forgotten jobs.

namespace holdfast::agent {
namespace {
constexpr size_t kGoodbyesMax = 65'536;
constexpr std::chrono::milliseconds kReleaseRetryInterval(500);
constexpr std::chrono::milliseconds kFlushPollInterval(20);
}  // namespace

/// Reports the trainers of this node to the coordinator. A rank counts as connected until its saves
/// are sealed, or verified after a restart of the agent: until then its job is not over.
void Node::ReportRanks() {
  std::map<RankKey, LocalRank> ranks;
  for (const auto& [key, incarnation] : goodbyes_) {
    ranks[key] = {key.first, incarnation, key.second, /*goodbye=*/true};
  }
  for (const auto& rank : Ranks()) {
    const SegmentOwner& owner = rank->segment.owner();
    if (IsParity(owner.rank)) {
      // Parity memory is in use as long as the job that it protects runs.
      auto job = jobs_.find(owner.job);
      const bool over = job != jobs_.end() && job->second.phase != JobPhase::kRunning;
      if (over) rank->connected.store(false);
      continue;
    }
    const RankKey key{owner.job, owner.rank};
    const auto busy = rank->slots.Unsealed();
    if (busy) {
      ranks[key] = {owner.job, *busy, owner.rank};
    } else if (trainers_.contains(key) && FindSession(owner.job, owner.rank) == nullptr) {
      // The process is alive and has not connected to the restarted agent yet.
      const auto newest = rank->slots.SealedVersions();
      if (!newest.empty()) ranks[key] = {owner.job, newest.front().first.incarnation, owner.rank};
    }
  }
  for (const auto& [id, session] : sessions_) {
    const bool joins =
        session->state == Session::State::kJoining || session->state == Session::State::kReady;
    if (!joins || session->incarnation.value == 0) continue;
    ranks[{session->job, session->rank}] = {session->job, session->incarnation, session->rank};
  }
  std::vector<LocalRank> all;
  for (auto& [key, rank] : ranks) all.push_back(std::move(rank));
  link_.SetRanks(std::move(all));
}

void Node::RememberGoodbye(const Session& session) {
  if (goodbyes_.size() < kGoodbyesMax) {
    goodbyes_[{session.job, session.rank}] = session.incarnation;
  }
}

/// Called on the loop thread. A worker frees the memory, one segment after the other, each when it
/// is no longer in use.
void Node::AdvanceReleases() {
  const Clock::TimePoint now = clock_.Now();
  for (auto it = releasing_jobs_.begin(); it != releasing_jobs_.end();) {
    const std::string job = it->first;
    const bool reconnected =
        std::any_of(sessions_.begin(), sessions_.end(),
                    [&](const auto& entry) { return entry.second->job == job; });
    if (reconnected) {
      it = releasing_jobs_.erase(it);
      continue;
    }
    if (Ranks(&job).empty()) {
      StopParity(job);
      DropJob(job);
      it = releasing_jobs_.erase(it);
      continue;
    }
    if (now >= it->second) {
      it->second = now + kReleaseRetryInterval;
      StopParity(job);
      // If the workers' queue is full, this is retried at the next interval.
      static_cast<void>(workers_.Post([this, job] { ReleaseMemory(job); }));
    }
    ++it;
  }
}

void Node::ReleaseMemory(const std::string& job) {
  MutexLock lock(reserve_mutex_);
  std::vector<std::shared_ptr<RankPipeline>> all = Ranks(&job);
  while (!all.empty()) {
    std::shared_ptr<RankPipeline> rank = std::move(all.back());
    all.pop_back();
    const RankKey key{rank->segment.owner().job, rank->segment.owner().rank};
    if (rank->connected.load() || reserving_.contains(key)) continue;
    Segment* memory = &rank->segment;
    const SegmentOwner owner = memory->owner();
    if (!Retire(rank, /*on_disk_too=*/true).ok()) continue;
    rank.reset();
    Log(LogLevel::kInfo, "MemoryReleased",
        {Kv("job", owner.job), Kv("shard", ShardName(owner.rank))});
    if (Status status = arena_.Release(memory); !status.ok()) {
      Log(LogLevel::kWarn, "MemoryNotReleased", {Kv("error", status.ToString())});
    }
  }
}

/// The thread of the ParityKeeper may be in the middle of a build, so the retention thread joins
/// it.
void Node::StopParity(const std::string& job) {
  reach_.SetGroup(job, std::nullopt);
  auto keeper = parity_keepers_.extract(job);
  if (keeper.empty()) return;
  std::shared_ptr<ParityKeeper> last = std::move(keeper.mapped());
  static_cast<void>(retention_.Post([last] {}));
}

/// Drops the state of a job that has no memory left.
void Node::DropJob(const std::string& job) {
  jobs_.erase(job);
  unprotected_.erase(job);
  std::erase_if(departed_, [&](const auto& entry) { return entry.first.first == job; });
  std::erase_if(joined_, [&](const auto& entry) { return entry.first.first == job; });
  std::erase_if(goodbyes_, [&](const auto& entry) { return entry.first.first == job; });
  peer_source_.Forget(job);
  SetWarning("parity/" + job, "");
}

/// Removes all shards of incarnations up to that of `state`, also from disk.
void Node::ForgetJob(const JobState& state) {
  const std::string& job = state.job;
  for (const auto& rank : Ranks(&job)) {
    const Rank number = rank->segment.owner().rank;
    for (const auto& [version, verified] : rank->slots.SealedVersions()) {
      if (version.incarnation > state.incarnation || !rank->slots.Discard(version).ok()) continue;
      link_.Report(RemovedReplica{{job, version, number}, Tier::kMemory});
    }
  }
  auto known = jobs_.find(job);
  const bool all = known == jobs_.end() || known->second.incarnation <= state.incarnation;
  if (all) releasing_jobs_.try_emplace(job, clock_.Now());
  const bool posted = retention_.Post([this, job, upto = state.incarnation] {
    std::map<VersionId, std::vector<ShardKey>> versions;
    for (const StoredShard& shard : volume_.List()) {
      const ShardIdentity& identity = shard.identity;
      if (identity.job != job || identity.version.incarnation > upto) continue;
      versions[identity.version].push_back(identity.key());
    }
    for (const auto& [version, keys] : versions) RemoveFromDisk(job, version, keys);
    Log(LogLevel::kInfo, "JobForgotten",
        {Kv("job", job), Kv("upto", upto.value), Kv("versions_on_disk", versions.size())});
  });
  if (!posted) Log(LogLevel::kWarn, "RemovalDropped", {Kv("job", job)});
}

/// Runs on the retention thread.
void Node::RemoveFromDisk(const std::string& job, VersionId version,
                          const std::vector<ShardKey>& keys) {
  const Status status = volume_.RemoveVersion(job, version);
  if (!status.ok() && status.code() != ErrorCode::kNotFound) {
    Log(LogLevel::kWarn, "VersionNotRemoved",
        {Kv("job", job), Kv("version", ToString(version)), Kv("error", status.ToString())});
    return;
  }
  Log(LogLevel::kDebug, "VersionRemoved", {Kv("job", job), Kv("version", ToString(version))});
  for (const ShardKey& key : keys) link_.Report(RemovedReplica{key, Tier::kDisk});
  MutexLock lock(damaged_mutex_);
  for (const ShardKey& key : keys) damaged_on_disk_.erase(key);
}

bool Node::Flush(int64_t timeout_ms) {
  const Clock::TimePoint deadline = clock_.Now() + std::chrono::milliseconds(timeout_ms);
  const std::vector<std::shared_ptr<RankPipeline>> ranks = Ranks();
  for (const auto& rank : ranks) rank->slots.StartFlush();
  const auto flushed = [](const auto& rank) { return rank->slots.Flushed(); };
  while (!std::all_of(ranks.begin(), ranks.end(), flushed)) {
    if (clock_.Now() >= deadline) return false;
    clock_.SleepFor(kFlushPollInterval);
  }
  return true;
}

}  // namespace holdfast::agent
