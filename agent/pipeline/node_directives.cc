#include <fmt/format.h>

#include "agent/pipeline/node.h"
#include "storage/base/crash_point.h"
#include "storage/base/log.h"
#include "storage/parity/parity_image.h"

// Executes the coordinator's directives and handles the events of the ranks' threads.

namespace holdfast::agent {
namespace {
constexpr size_t kParkedMax = 4096;
constexpr size_t kJobsMax = 4096;
constexpr std::chrono::seconds kRejoinPause(2);
constexpr std::chrono::minutes kRejoinPauseMost(10);
constexpr uint32_t kParitySlots = 2;  // the committed version and the one being built
}  // namespace

void Node::OnJobState(JobState state) {
  Post([this, state = std::move(state)]() mutable { ApplyJobState(std::move(state)); });
}

void Node::OnPrepareShard(PrepareShard prepare) {
  Post([this, prepare = std::move(prepare)]() mutable { ApplyPrepare(std::move(prepare)); });
}

void Node::OnRemoveVersion(RemoveVersion remove) {
  Post([this, remove = std::move(remove)] { ApplyRemove(remove); });
}

void Node::OnLife(const SeenLife& seen) {
  Post([this, seen] { ApplyLife(seen); });
}

/// In another life of the coordinator's store, the numbers of versions and incarnations have
/// another meaning. Trainers join again, and the state of jobs is dropped. Replicas are kept; they
/// belong to the earlier life.
void Node::ApplyLife(const SeenLife& seen) {
  const LifeId before{life_.exchange(seen.life.value)};
  unlabeled_.store(seen.unlabeled.value);
  for (const auto& rank : Ranks()) rank->slots.SetLife(seen.life, seen.unlabeled);
  if (before.value == 0 || before == seen.life) return;
  Log(LogLevel::kWarn, "StoreLifeChanged",
      {Kv("life", ToString(seen.life)), Kv("before", ToString(before)),
       Kv("effect", "trainers join again; replicas of the earlier life are kept")});
  for (const auto& [id, session] : sessions_) {
    EndSession(*session, "the life of the coordinator's store has changed");
  }
  for (auto& [key, trainer] : trainers_) trainer.incarnation = Incarnation{};
  departed_.clear();
  StoreTrainers();
  for (const auto& rank : Ranks()) rank->slots.ForgetJobState();
  for (const auto& [name, job] : std::exchange(jobs_, {})) {
    JobState nothing;
    nothing.job = name;
    UpdateParity(nothing);
  }
  joined_.clear();
  unprotected_.clear();
  releasing_jobs_.clear();
}

void Node::ApplyJobState(JobState state) {
  if (state.forget) return ForgetJob(state);
  auto known = jobs_.find(state.job);
  if (known == jobs_.end() && jobs_.size() >= kJobsMax) {
    Log(LogLevel::kError, "TooManyJobs", {Kv("job", state.job)});
    return;
  }
  if (state.release) {
    state.group.reset();  // build no more parity for it
    releasing_jobs_.try_emplace(state.job, clock_.Now());
  } else {
    releasing_jobs_.erase(state.job);
  }
  const JobState before = known == jobs_.end() ? JobState{} : known->second;
  const JobState& now = jobs_.insert_or_assign(state.job, std::move(state)).first->second;

  const std::string fenced =
      fmt::format("incarnation {} of {} has started", now.incarnation.value, now.job);
  peer_source_.SetIncarnation(now.job, now.incarnation);
  for (const auto& rank : Ranks(&now.job)) {
    rank->slots.SetJobState(IsParity(rank->segment.owner().rank) ? ForParity(now) : now);
    for (VersionId version :
         rank->slots.AbortOlder(now.incarnation, {ErrorCode::kFenced, fenced})) {
      ReportNotSaved({now.job, version, rank->segment.owner().rank}, fenced);
    }
  }
  UpdateParity(now);
  RepeatJoins(now);
  for (const auto& [id, session] : sessions_) {
    if (session->state != Session::State::kReady || session->job != now.job) continue;
    if (session->incarnation < now.incarnation && !session->fenced) {
      session->fenced = true;
      Notify(*session, NoticeKind::kFenced, {now.incarnation, Step{}}, Tier::kMemory,
             {ErrorCode::kFenced, fenced});
    }
    NotifyCommitted(*session, &before, now);
    if (session->state == Session::State::kReady) RetryWaitingRequests(*session);
  }
}

void Node::UpdateParity(const JobState& job) {
  reach_.SetGroup(job.job, job.group);
  auto keeper = parity_keepers_.find(job.job);
  if (keeper == parity_keepers_.end()) {
    if (!job.group) return;
    ParityTools tools{
        peer_source_, peers_, link_, clock_, options_.node, options_.peer_build_timeout_ms,
        {},           {},     {}};
    tools.reserve = [this](const std::string& name, Rank parity, uint64_t slot_bytes) {
      return ReserveParity(name, parity, slot_bytes);
    };
    tools.find_rank = [this](const std::string& name, Rank rank) { return FindRank(name, rank); };
    tools.warn = [this, name = job.job](const std::string& text) {
      SetWarning("parity/" + name, text.empty() ? "" : name + ": " + text);
    };
    keeper =
        parity_keepers_.emplace(job.job, std::make_unique<ParityKeeper>(std::move(tools), job.job))
            .first;
  }
  keeper->second->SetJobState(job);
}

/// Repeats the joins of a job without a parity group. A coordinator that restarted while ranks
/// joined has lost their slot sizes and cannot plan a group without them. The interval doubles each
/// time, since a group can be absent for other reasons.
void Node::RepeatJoins(const JobState& job) {
  if (job.group) {
    unprotected_.erase(job.job);
    return;
  }
  const Clock::TimePoint now = clock_.Now();
  Unprotected& known = unprotected_[job.job];
  if (known.incarnation != job.incarnation) {
    known = {job.incarnation, now + kRejoinPause, kRejoinPause};
  }
  if (now < known.next) return;
  known.pause = std::min<Clock::Duration>(2 * known.pause, kRejoinPauseMost);
  known.next = now + known.pause;
  for (const auto& [id, session] : sessions_) {
    const bool runs = session->state == Session::State::kReady && session->job == job.job &&
                      session->incarnation == job.incarnation;
    if (runs) link_.Join(JoinRequestOf(*session), [](const Result<Incarnation>&) {});
  }
}

Result<std::shared_ptr<RankPipeline>> Node::ReserveParity(const std::string& job, Rank parity,
                                                          uint64_t slot_bytes) {
  SegmentOwner owner{job, parity, 0};
  for (const auto& rank : Ranks(&job)) owner.uid = rank->segment.owner().uid;
  HOLDFAST_ASSIGN_OR_RETURN([[maybe_unused]] Segment * segment,
                            Reserve(owner, kParitySlots, slot_bytes, /*world=*/0));
  std::shared_ptr<RankPipeline> rank = FindRank(job, parity);
  if (rank == nullptr) {
    return Fail(UnavailableError(
        fmt::format("the memory of {} of {} was reassigned", ShardName(parity), job)));
  }
  rank->connected.store(true);
  return rank;
}

void Node::ApplyPrepare(PrepareShard prepare) {
  const ShardKey key = prepare.identity.key();
  if (auto running = preparing_.find({key, prepare.into}); running != preparing_.end()) {
    running->second.push_back(prepare.request);
    return;
  }
  // A shard can go to disk without memory on this node.
  if (prepare.into != Tier::kDisk && IsParity(key.rank)) {
    return StartParityPrepare(std::move(prepare));
  }
  std::shared_ptr<RankPipeline> rank = FindRank(key.job, key.rank);
  if (rank != nullptr || prepare.into == Tier::kDisk) {
    StartPrepare(std::move(prepare), std::move(rank));
    return;
  }
  if (parked_.size() >= kParkedMax) parked_.erase(parked_.begin());
  const Clock::TimePoint deadline =
      clock_.Now() + std::chrono::milliseconds(options_.prepare_wait_ms);
  parked_.push_back({std::move(prepare), deadline});
}

void Node::StartPrepare(PrepareShard prepare, std::shared_ptr<RankPipeline> rank) {
  const ShardKey key = prepare.identity.key();
  const Tier into = prepare.into;
  if (auto job = jobs_.find(key.job); job != jobs_.end()) {
    prepare.incarnation = job->second.incarnation;
  }
  preparing_[{key, into}].push_back(prepare.request);
  // Restores to disk take long and are not urgent: they must not delay restores to memory.
  Executor& executor = into == Tier::kDisk ? repairs_ : workers_;
  const bool posted = executor.Post([this, prepare = std::move(prepare), rank = std::move(rank)] {
    const Status status = Prepare(prepare, rank.get());
    Post([this, key = prepare.identity.key(), into = prepare.into, status] {
      FinishPrepare(key, into, status);
    });
  });
  if (!posted) {
    FinishPrepare(key, into, UnavailableError("the agent is overloaded or stopping"));
  }
}

/// No trainer has reserved memory for a parity shard, so a worker reserves it first.
void Node::StartParityPrepare(PrepareShard prepare) {
  const ShardKey key = prepare.identity.key();
  const Tier into = prepare.into;
  const auto refuse = [&](const Status& why) { link_.Report(Prepared{prepare.request, why}); };
  const auto position =
      prepare.group ? prepare.group->PositionOf(options_.node) : std::optional<uint32_t>();
  if (!position) {
    return refuse(InvalidArgumentError(
        fmt::format("the directive names no parity group with node {}", options_.node)));
  }
  const auto image = ParityImage::Make(*prepare.group, *position, prepare.identity);
  if (!image) return refuse(image.error());
  JobState job;
  if (auto known = jobs_.find(key.job); known != jobs_.end()) job = known->second;
  prepare.incarnation = job.incarnation;
  preparing_[{key, into}].push_back(prepare.request);
  auto task = [this, prepare = std::move(prepare), job = ForParity(std::move(job)),
               bytes = image->image_bytes()] {
    const ShardKey shard = prepare.identity.key();
    auto rank = ReserveParity(shard.job, shard.rank, bytes);
    Status status = rank ? Status::Ok() : rank.error();
    if (status.ok()) {
      (*rank)->slots.SetJobState(job);
      status = Prepare(prepare, rank->get());
    }
    Post([this, shard, into = prepare.into, status] { FinishPrepare(shard, into, status); });
  };
  // The job's parity keeper runs the task between two versions, since both need the free slot.
  auto keeper = parity_keepers_.find(key.job);
  if (keeper != parity_keepers_.end()) return keeper->second->Post(std::move(task));
  if (workers_.Post(std::move(task))) return;
  FinishPrepare(key, into, UnavailableError("the agent is overloaded or stopping"));
}

Status Node::Prepare(const PrepareShard& prepare, RankPipeline* rank) {
  RankSlots* slots = rank == nullptr ? nullptr : &rank->slots;
  return prepare.into == Tier::kDisk ? BringToDisk(restore_tools_, slots, prepare)
                                     : BringIntoMemory(restore_tools_, *slots, prepare);
}

void Node::FinishPrepare(const ShardKey& key, Tier into, const Status& status) {
  auto waiting = preparing_.extract({key, into});
  if (waiting.empty()) return;
  Log(status.ok() ? LogLevel::kInfo : LogLevel::kWarn, "ShardPrepared",
      {Kv("shard", ToString(key)), Kv("tier", ToString(into)), Kv("outcome", status.ToString())});
  for (uint64_t request : waiting.mapped()) {
    if (request != 0) link_.Report(Prepared{request, status});
  }
  if (Session* session = FindSession(key.job, key.rank);
      session != nullptr && session->state == Session::State::kReady) {
    if (status.ok() && into == Tier::kMemory) session->prepared = key.version;
    RetryWaitingRequests(*session);
  }
}

void Node::ApplyRemove(const RemoveVersion& remove) {
  if (remove.tier == Tier::kMemory) {
    for (const auto& rank : Ranks(&remove.job)) {
      if (!rank->slots.Discard(remove.version).ok()) continue;
      const Rank number = rank->segment.owner().rank;
      link_.Report(RemovedReplica{{remove.job, remove.version, number}, Tier::kMemory});
      OnSlotsChanged(remove.job, number);
    }
    return;
  }
  if (remove.tier != Tier::kDisk) return;
  const bool posted = retention_.Post([this, remove] {
    std::vector<ShardKey> keys;
    for (const StoredShard& shard : volume_.List()) {
      if (shard.identity.job == remove.job && shard.identity.version == remove.version) {
        keys.push_back(shard.identity.key());
      }
    }
    RemoveFromDisk(remove.job, remove.version, keys);
  });
  if (!posted) Log(LogLevel::kWarn, "RemovalDropped", {Kv("version", ToString(remove.version))});
}

// ---- from the ranks' threads ----

void Node::OnSealed(const ShardSeal& seal, std::vector<ReplicaSample> samples) {
  HOLDFAST_CRASH_POINT("agent.before_report_memory");
  StoredReplica report{seal.identity, Tier::kMemory, seal.digest(), seal.image_bytes, "",
                       seal.life};
  report.samples = std::move(samples);
  link_.Report(std::move(report));
  Post([this, key = seal.identity.key()] {
    Session* session = FindSession(key.job, key.rank);
    if (session == nullptr || session->state != Session::State::kReady) return;
    Notify(*session, NoticeKind::kSealed, key.version, Tier::kMemory);
  });
}

void Node::OnSaveFailed(const ShardKey& key, const Status& why) {
  // An aborted save was reported when it was given up.
  if (why.code() == ErrorCode::kAborted || why.code() == ErrorCode::kFenced ||
      why.code() == ErrorCode::kCancelled) {
    return;
  }
  Log(LogLevel::kWarn, "SaveFailed", {Kv("shard", ToString(key)), Kv("error", why.ToString())});
  ReportNotSaved(key, why.message());
  Post([this, key, why] {
    Session* session = FindSession(key.job, key.rank);
    if (session == nullptr || session->state != Session::State::kReady) return;
    Notify(*session, NoticeKind::kFailed, key.version, Tier::kMemory, why);
  });
}

void Node::OnStored(const ShardSeal& seal) {
  SetWarning("disk", "");
  HOLDFAST_CRASH_POINT("agent.before_report_disk");
  link_.Report(
      StoredReplica{seal.identity, Tier::kDisk, seal.digest(), seal.image_bytes, "", seal.life});
}

void Node::OnNotStored(const ShardKey& key, const Status& why) {
  link_.Report(FailedReplica{key, Tier::kDisk, why.message()});
  const bool full = why.code() == ErrorCode::kOutOfSpace;
  SetWarning("disk", fmt::format("{}: {}", full ? "disk full" : "disk failed", why.message()));
  Post([this, key, why] {
    Session* session = FindSession(key.job, key.rank);
    if (session == nullptr || session->state != Session::State::kReady) return;
    Notify(*session, NoticeKind::kFailed, key.version, Tier::kDisk, why);
  });
}

void Node::OnSlotsChanged(const std::string& job, Rank rank) {
  Post([this, job, rank] {
    Session* session = FindSession(job, rank);
    if (session == nullptr || session->state != Session::State::kReady) return;
    RetryWaitingRequests(*session);
  });
}

void Node::WarnOfQuarantine() {
  const uint64_t files = volume_.QuarantinedFiles();
  SetWarning("quarantine", files == 0
                               ? ""
                               : fmt::format("quarantined files: {} in quarantine/ of the data "
                                             "directories, damaged or unknown; inspect them, then "
                                             "delete them",
                                             files));
}

void Node::SetWarning(const std::string& key, const std::string& text) {
  MutexLock lock(warnings_mutex_);
  const auto known = warnings_.find(key);
  if (text.empty() ? known == warnings_.end() : known != warnings_.end() && known->second == text) {
    return;
  }
  if (text.empty()) {
    warnings_.erase(key);
  } else {
    warnings_[key] = text;
  }
  std::vector<std::string> all;
  for (const auto& [name, warning] : warnings_) all.push_back(warning);
  link_.SetWarnings(std::move(all));
}

}  // namespace holdfast::agent
