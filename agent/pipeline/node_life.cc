#include <fmt/format.h>

#include <algorithm>

#include "agent/pipeline/node.h"
#include "storage/base/log.h"

// The life of jobs on this node: which trainers it has, and the end of what a job that is over has
// in memory, or a forgotten one anywhere.

namespace holdfast::agent {
namespace {
constexpr size_t kGoodbyesMax = 65'536;
constexpr std::chrono::milliseconds kReleaseAgain(500);
constexpr std::chrono::milliseconds kFlushLook(20);
}  // namespace

/// Tells the coordinator of the trainers of this node. A rank counts as connected until what it
/// saved is sealed, or checked after a restart of the agent: nobody takes its job for over before.
void Node::TellRanks() {
  std::map<RankKey, LocalRank> ranks;
  for (const auto& [key, incarnation] : goodbyes_) {
    ranks[key] = {key.first, incarnation, key.second, /*said_goodbye=*/true};
  }
  for (const auto& rank : Ranks()) {
    const SegmentOwner& owner = rank->segment.owner();
    if (IsParity(owner.rank)) {
      // Its memory is for the trainers that it protects.
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
      // It lives, and has not come back to this agent yet.
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

/// Loop thread. The memory goes on a worker, bit by bit as it is no longer in use.
void Node::AdvanceReleases() {
  const Clock::TimePoint now = clock_.Now();
  for (auto it = releasing_jobs_.begin(); it != releasing_jobs_.end();) {
    const std::string job = it->first;
    const bool back = std::any_of(sessions_.begin(), sessions_.end(),
                                  [&](const auto& entry) { return entry.second->job == job; });
    if (back) {
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
      it->second = now + kReleaseAgain;
      StopParity(job);
      // When the workers are busy, later.
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
      Log(LogLevel::kWarn, "MemoryNotGivenBack", {Kv("error", status.ToString())});
    }
  }
}

/// Its thread may be in the middle of something: it is joined elsewhere.
void Node::StopParity(const std::string& job) {
  reach_.SetGroup(job, std::nullopt);
  auto keeper = parity_keepers_.extract(job);
  if (keeper.empty()) return;
  std::shared_ptr<ParityKeeper> last = std::move(keeper.mapped());
  static_cast<void>(retention_.Post([last] {}));
}

/// What is known of a job beside what it holds.
void Node::DropJob(const std::string& job) {
  jobs_.erase(job);
  unprotected_.erase(job);
  std::erase_if(parted_, [&](const auto& entry) { return entry.first.first == job; });
  std::erase_if(joined_, [&](const auto& entry) { return entry.first.first == job; });
  std::erase_if(goodbyes_, [&](const auto& entry) { return entry.first.first == job; });
  peer_source_.Forget(job);
  SetWarning("parity/" + job, "");
}

/// Everything of incarnations up to the named one goes, on disk as well.
void Node::ForgetJob(const JobState& word) {
  const std::string& job = word.job;
  for (const auto& rank : Ranks(&job)) {
    const Rank number = rank->segment.owner().rank;
    for (const auto& [version, verified] : rank->slots.SealedVersions()) {
      if (version.incarnation > word.incarnation || !rank->slots.Discard(version).ok()) continue;
      link_.Report(Gone{{job, version, number}, Tier::kMemory});
    }
  }
  auto known = jobs_.find(job);
  const bool all = known == jobs_.end() || known->second.incarnation <= word.incarnation;
  if (all) releasing_jobs_.try_emplace(job, clock_.Now());
  const bool posted = retention_.Post([this, job, upto = word.incarnation] {
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

/// Retention's thread.
void Node::RemoveFromDisk(const std::string& job, VersionId version,
                          const std::vector<ShardKey>& keys) {
  const Status status = volume_.RemoveVersion(job, version);
  if (!status.ok() && status.code() != ErrorCode::kNotFound) {
    Log(LogLevel::kWarn, "VersionNotRemoved",
        {Kv("job", job), Kv("version", ToString(version)), Kv("error", status.ToString())});
    return;
  }
  Log(LogLevel::kDebug, "VersionRemoved", {Kv("job", job), Kv("version", ToString(version))});
  for (const ShardKey& key : keys) link_.Report(Gone{key, Tier::kDisk});
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
    clock_.SleepFor(kFlushLook);
  }
  return true;
}

}  // namespace holdfast::agent
