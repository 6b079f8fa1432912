#include "coordinator/server/applier.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "base/crash_point.h"
#include "base/log.h"
#include "coordinator/state/owner.h"

namespace holdfast::coord {
namespace {
/// Causes that alternate are logged at most this often: each member of etcd fails with its own
/// text.
constexpr auto kLoadErrorPause = std::chrono::seconds(5);
constexpr auto kReloadInterval = std::chrono::milliseconds(200);
/// A coordinator that stands by learns within this time that it leads.
constexpr auto kStandbyInterval = std::chrono::milliseconds(20);
/// A late wake-up counts as a pause from this delay on. Shorter delays are normal on a busy
/// machine.
constexpr auto kPauseMin = std::chrono::milliseconds(250);
/// Age of a snapshot after which the next batch renews it although no query waits.
constexpr auto kSnapshotInterval = std::chrono::seconds(1);
/// After a copy of the state that took t, the next one begins at the earliest nine t later.
constexpr int kSnapshotPause = 9;
constexpr auto kSnapshotPauseMax = std::chrono::milliseconds(100);

Status LeaseEnded() {
  return FencedError("this coordinator's lease has ended; another one may lead");
}

Reply Refusal(RequestId request, const Status& why) {
  Reply reply;
  reply.request = request;
  reply.outcome = why;
  return reply;
}

/// What a batch contains, as far as crash points and the log depend on it.
struct BatchMarks {
  bool commit = false;
  bool join = false;
  bool decision = false;
};

BatchMarks MarksOf(const std::vector<Effect>& effects) {
  BatchMarks marks;
  for (const Effect& effect : effects) {
    if (const auto* put = std::get_if<PutVersion>(&effect)) {
      marks.commit = marks.commit || put->committed_tier_bit != 0;
    } else if (const auto* lineage = std::get_if<PutLineage>(&effect)) {
      marks.decision = marks.decision || lineage->change == LineageChange::kDecided;
      marks.join = marks.join || lineage->change == LineageChange::kOpened;
    }
  }
  return marks;
}

Tier TierOf(uint32_t bit) {
  for (const TierTraits& traits : kTierTable) {
    if (bit == TierBit(traits.tier)) return traits.tier;
  }
  return Tier::kMemory;
}

void LogLineage(const PutLineage& put) {
  const LineageRecord& record = put.record;
  switch (put.change) {
    case LineageChange::kOpened:
      Log(LogLevel::kInfo, "IncarnationOpened",
          {Kv("job", record.job), Kv("incarnation", record.incarnation.value),
           Kv("run_id", record.run_id), Kv("world", record.world)});
      return;
    case LineageChange::kPlanned: {
      if (record.peers.empty()) return;  // an old plan was removed
      size_t nodes = 0;
      for (const PlannedGroup& group : record.peers) nodes += group.members.size();
      Log(LogLevel::kInfo, "PeersPlanned",
          {Kv("job", record.job), Kv("incarnation", record.incarnation.value), Kv("nodes", nodes),
           Kv("groups", record.peers.size())});
      return;
    }
    case LineageChange::kDecided:
      Log(LogLevel::kInfo, "RestoreDecided",
          {Kv("job", record.job), Kv("incarnation", record.incarnation.value),
           Kv("version", record.decision == Decision::kFresh ? std::string("fresh")
                                                             : ToString(record.restored))});
      return;
  }
}

void LogEffect(const Effect& effect) {
  if (const auto* put = std::get_if<PutVersion>(&effect)) {
    const VersionRecord& record = put->record;
    if (put->committed_tier_bit == 0) return;
    Log(LogLevel::kDebug, "VersionCommitted",
        {Kv("job", record.job), Kv("version", ToString(record.version)),
         Kv("tier", ToString(TierOf(put->committed_tier_bit))), Kv("bytes", record.bytes)});
  } else if (const auto* lineage = std::get_if<PutLineage>(&effect)) {
    LogLineage(*lineage);
  } else if (const auto* finding = std::get_if<Finding>(&effect)) {
    const ErrorCode code = finding->what.code();
    Log(code == ErrorCode::kAborted ? LogLevel::kDebug : LogLevel::kWarn, "Finding",
        {Kv("job", finding->job), Kv("node", finding->node), Kv("code", ErrorName(code)),
         Kv("what", finding->what.message())});
  } else if (const auto* repaired = std::get_if<Repaired>(&effect)) {
    Log(LogLevel::kInfo, "ShardRepaired",
        {Kv("job", repaired->job), Kv("node", repaired->node),
         Kv("shard", ToString(repaired->shard)), Kv("tier", ToString(repaired->tier))});
  } else if (const auto* run = std::get_if<PutRun>(&effect)) {
    const RunRecord& record = run->record;
    Log(LogLevel::kInfo, "Run",
        {Kv("job", record.spec.job), Kv("run_id", record.run_id()),
         Kv("phase", ToString(record.phase)), Kv("why", record.why)});
  } else if (const auto* incident = std::get_if<PutIncident>(&effect)) {
    const IncidentRecord& record = incident->record;
    // Log only the opening and the end, not every update of an open incident.
    if (!incident->opened && record.state == IncidentState::kOpen) return;
    Log(incident->opened ? LogLevel::kWarn : LogLevel::kInfo, "Incident",
        {Kv("id", record.id), Kv("job", record.job), Kv("kind", record.kind),
         Kv("state", ToString(record.state)), Kv("what", record.what), Kv("plan", record.plan)});
  }
}
}  // namespace

Applier::Applier(std::string cluster, StateOptions options, SupervisorOptions runs,
                 StoreOpener opener, Clock& clock, RestartHandler restart, Startup startup)
    : cluster_(std::move(cluster)),
      options_(std::move(options)),
      run_options_(runs),
      opener_(std::move(opener)),
      run_restart_command_(std::move(restart)),
      startup_(startup),
      clock_(clock),
      tick_(std::clamp<std::chrono::nanoseconds>(options_.node_lease / 10,
                                                 std::chrono::milliseconds(10),
                                                 std::chrono::milliseconds(100))) {
  options_.invariants = run_options_.invariants = &invariants_;
  reads_ = std::make_unique<Reads>(clock_, [this] {
    MutexLock lock(mutex_);
    snapshot_wanted_ = true;
    wake_.NotifyOne();
  });
}

Result<std::unique_ptr<Applier>> Applier::Start(std::string cluster, StateOptions options,
                                                SupervisorOptions runs, StoreOpener opener,
                                                Clock& clock, RestartHandler restart,
                                                Startup startup) {
  std::unique_ptr<Applier> applier(new Applier(std::move(cluster), std::move(options), runs,
                                               std::move(opener), clock, std::move(restart),
                                               startup));
  applier->last_wake_ = clock.Now();
  applier->at_ = {applier->last_wake_, clock.WallNanos()};
  if (startup == Startup::kNeedsStore) HOLDFAST_RETURN_IF_ERROR(applier->Load());
  applier->thread_ = Thread([raw = applier.get()] { raw->Run(); });
  return applier;
}

Applier::~Applier() { Stop(); }

void Applier::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  wake_.NotifyAll();
  if (thread_.joinable()) thread_.join();
  reads_->Stop();
}

Status Applier::Load() {
  state_.reset();
  supervisor_.reset();
  catalog_.reset();
  HOLDFAST_ASSIGN_OR_RETURN(auto store, opener_());
  HOLDFAST_ASSIGN_OR_RETURN(auto catalog, Catalog::Open(std::move(store), cluster_, invariants_));
  HOLDFAST_ASSIGN_OR_RETURN(Records records, catalog->Read());
  HOLDFAST_INVARIANT(invariants_, catalog->epoch().value > epoch_.load(),
                     Kv("epoch", catalog->epoch().value), Kv("before", epoch_.load()));
  options_.epoch = catalog->epoch();
  options_.life = run_options_.life = catalog->life();
  HOLDFAST_ASSIGN_OR_RETURN(State state, State::Load(options_, records, at_));
  HOLDFAST_RETURN_IF_ERROR(invariants_.error());
  attendance_.Reset(records);
  owners_.Load(records);
  job_owners_.Reset(owners_.All());
  catalog_ = std::move(catalog);
  state_.emplace(std::move(state));
  supervisor_.emplace(run_options_, records, at_);
  epoch_ = options_.epoch.value;
  publish_not_before_ = {};
  PublishSnapshot();
  Log(LogLevel::kInfo, "StateLoaded",
      {Kv("life", ToString(options_.life)), Kv("epoch", options_.epoch.value),
       Kv("jobs", records.jobs.size()), Kv("versions", records.versions.size()),
       Kv("runs", records.runs.size())});
  return Status::Ok();
}

void Applier::Enqueue(Work work) {
  {
    MutexLock lock(mutex_);
    if (!stopping_) {
      queue_.push_back(std::move(work));
      wake_.NotifyOne();
      return;
    }
  }
  // The applier has stopped and takes no more work.
  if (work.handler) work.handler(nullptr);
  if (work.then) work.then();
  if (work.sink) work.sink->Close(UnavailableError("the coordinator is stopping"));
}

void Applier::Submit(Event event, std::optional<RequestId> request, ReplyHandler handler) {
  Work work;
  work.event = std::move(event);
  work.request = request;
  work.handler = std::move(handler);
  Enqueue(std::move(work));
}

void Applier::Submit(RunEvent event, std::optional<RequestId> request, ReplyHandler handler) {
  Work work;
  work.run_event = std::move(event);
  work.request = request;
  work.handler = std::move(handler);
  Enqueue(std::move(work));
}

void Applier::Attach(NodeAttached event, std::shared_ptr<DirectiveSink> sink) {
  Work work;
  work.attach = event.attach;
  work.event = std::move(event);
  work.sink = std::move(sink);
  Enqueue(std::move(work));
}

void Applier::Keep(AttachId id, std::shared_ptr<DirectiveSink> sink) {
  Work work;
  work.attach = id;
  work.sink = std::move(sink);
  Enqueue(std::move(work));
}

void Applier::Release(AttachId id) {
  Work work;
  work.attach = id;
  Enqueue(std::move(work));
}

void Applier::AfterNextBatch(std::function<void()> then) {
  Work work;
  work.then = std::move(then);
  Enqueue(std::move(work));
}

std::chrono::nanoseconds Applier::busy_for() const {
  const int64_t began = batch_began_.load();
  if (began == 0) return std::chrono::nanoseconds(0);
  return clock_.Now().time_since_epoch() - std::chrono::nanoseconds(began);
}

void Applier::PublishSnapshot() {
  if (!state_ || !supervisor_) {
    published_at_ = {};
    return reads_->Withdraw();
  }
  const auto now = clock_.Now();
  const uint64_t asked = reads_->asked();
  const bool due = asked != published_ || now - published_at_ >= kSnapshotInterval;
  if (!due) return;
  if (now < publish_not_before_) {
    // Take() waits until then.
    MutexLock lock(mutex_);
    snapshot_wanted_ = true;
    return;
  }
  std::function<bool()> held = catalog_ != nullptr ? catalog_->HeldCheck() : [] { return true; };
  reads_->Publish(
      std::make_shared<const Snapshot>(Snapshot{*state_, *supervisor_, epoch(), std::move(held)}),
      asked);
  published_ = asked;
  published_at_ = now;
  const auto took = clock_.Now() - now;
  publish_not_before_ =
      clock_.Now() + std::min<Clock::Duration>(kSnapshotPause * took, kSnapshotPauseMax);
}

std::vector<Applier::Work> Applier::Take() {
  const bool stands_by = !state_ && startup_ == Startup::kMayStandBy;
  auto wait = stands_by ? std::min<std::chrono::nanoseconds>(tick_, kStandbyInterval) : tick_;
  MutexLock lock(mutex_);
  if (snapshot_wanted_) {
    wait = std::min<std::chrono::nanoseconds>(wait, publish_not_before_ - clock_.Now());
  }
  const bool waits = queue_.empty() && !stopping_ && wait.count() > 0;
  // A query that arrives while this thread waits ends the wait.
  if (waits) wake_.WaitFor(mutex_, wait);
  snapshot_wanted_ = false;
  return std::exchange(queue_, {});
}

void Applier::Run() {
  for (;;) {
    std::vector<Work> batch = Take();
    UpdateTime();
    bool stopping = false;
    {
      MutexLock lock(mutex_);
      stopping = stopping_;
      if (stopping) {
        std::move(queue_.begin(), queue_.end(), std::back_inserter(batch));
        queue_.clear();
      }
    }
    if (stopping) {
      for (Work& work : batch) Register(work);
      AbandonClients(UnavailableError("the coordinator is stopping"));
      for (Work& work : batch) {
        if (work.then) work.then();
      }
      return;
    }
    batch_began_ = std::max<int64_t>(1, clock_.Now().time_since_epoch().count());
    if (state_ && catalog_ != nullptr && !catalog_->Held()) Drop(LeaseEnded());
    LoadIfDue();
    ApplyBatch(batch);
    PublishSnapshot();
    batch_began_ = 0;
    const bool had_work = !batch.empty();
    for (Work& work : batch) {
      if (work.then) work.then();
    }
    if (had_work) clock_.SleepFor(BatchPause(attendance_.agents()));
  }
}

void Applier::LoadIfDue() {
  if (state_ || invariants_.violated() || clock_.Now() < reload_at_) return;
  const Status status = Load();
  const bool stands_by =
      startup_ == Startup::kMayStandBy && status.code() == ErrorCode::kUnavailable;
  {
    MutexLock lock(mutex_);
    why_not_loaded_ = status.ok() || stands_by ? "" : status.ToString();
  }
  if (status.ok()) {
    load_error_.clear();
    return;
  }
  if (status.ToString() != load_error_ &&
      (load_error_.empty() || clock_.Now() - load_error_at_ >= kLoadErrorPause)) {
    load_error_ = status.ToString();
    load_error_at_ = clock_.Now();
    if (stands_by) {
      Log(LogLevel::kInfo, "CoordinatorStandsBy", {Kv("why", load_error_)});
    } else {
      Log(LogLevel::kError, "StoreUnusable", {Kv("why", load_error_)});
    }
  }
  reload_at_ = clock_.Now() + (stands_by ? kStandbyInterval : kReloadInterval);
}

void Applier::Drop(const Status& why) {
  if (state_) {
    Log(LogLevel::kError, "StateDropped", {Kv("why", why.ToString())});
    reload_at_ = clock_.Now();
  }
  reads_->Withdraw();  // before any caller learns of it
  state_.reset();
  supervisor_.reset();
  catalog_.reset();
  AbandonClients(UnavailableError("the coordinator is loading its store again; try again"));
}

/// Detects a pause by a late wake-up. A stopped process, a frozen machine and a write that hangs
/// cannot be distinguished here.
void Applier::UpdateTime() {
  const auto now = clock_.Now();
  const Clock::Duration late = now - last_wake_ - tick_;
  last_wake_ = now;
  resumed_ = late > std::max<Clock::Duration>(options_.node_lease / 4, kPauseMin);
  if (resumed_) {
    paused_ += late;
    Log(LogLevel::kWarn, "CoordinatorWasPaused",
        {Kv("ms", std::chrono::duration_cast<std::chrono::milliseconds>(late).count())});
  }
  at_ = {now - paused_, clock_.WallNanos()};
}

void Applier::Register(Work& work) {
  if (work.handler) handlers_[*work.request] = std::move(work.handler);
  if (work.sink) {
    sinks_[*work.attach] = std::move(work.sink);
  } else if (work.attach) {
    sinks_.erase(*work.attach);
  }
  if (work.event) {
    if (const auto* abandoned = std::get_if<RestoreAbandoned>(&*work.event)) {
      handlers_.erase(abandoned->request);
    }
  }
}

Status Applier::CheckUser(const std::string& job, uint32_t uid) const {
  const JobOwner owner = owners_.Find(job);
  if (owner.exists) return CheckOwner(job, owner.uid, uid);
  const uint32_t most = run_options_.jobs_per_user;
  if (most == 0 || uid == kRootUser) return Status::Ok();
  const size_t has = owners_.CountOf(uid);
  if (has < most) return Status::Ok();
  return ResourceExhaustedError(fmt::format(
      "uid {} has {} jobs, and access.jobs_per_user of the coordinator is {}; forget a job with "
      "`holdfast forget`, or have an operator raise the limit",
      uid, has, most));
}

void Applier::Apply(const RunEvent& event, std::vector<Effect>& effects) {
  if (const auto* run = std::get_if<RunRequested>(&event); run != nullptr && run->spec.uid) {
    const Status allowed = CheckUser(run->spec.job, *run->spec.uid);
    if (!allowed.ok()) {
      if (run->request) effects.emplace_back(Refusal(*run->request, allowed));
      return;
    }
  }
  std::vector<Effect> caused = supervisor_->Apply(event, at_);
  owners_.Update(caused);
  std::move(caused.begin(), caused.end(), std::back_inserter(effects));
}

void Applier::Apply(const Event& event, std::vector<Effect>& effects) {
  if (const auto* join = std::get_if<RankJoined>(&event)) {
    const Status allowed = CheckUser(join->job, join->uid);
    if (!allowed.ok()) {
      if (join->request) effects.emplace_back(Refusal(*join->request, allowed));
      return;
    }
  }
  std::vector<Effect> caused = state_->Apply(event, at_);
  owners_.Update(caused);
  attendance_.Update(event, caused);
  std::vector<Effect> followed = supervisor_->Observe(event, caused, at_);
  owners_.Update(followed);
  std::move(caused.begin(), caused.end(), std::back_inserter(effects));
  std::move(followed.begin(), followed.end(), std::back_inserter(effects));
}

void Applier::FinishBatch(std::vector<Effect>& effects) {
  std::vector<Effect> caused = state_->FinishBatch();
  owners_.Update(caused);
  std::vector<Effect> followed = supervisor_->Observe(caused, at_);
  owners_.Update(followed);
  std::move(caused.begin(), caused.end(), std::back_inserter(effects));
  std::move(followed.begin(), followed.end(), std::back_inserter(effects));
}

/// Applies the changes of runs that the supervisor stores to the state, as RunStateChanged events.
void Applier::ApplyRunChanges(std::vector<Effect>& effects) {
  for (size_t i = 0; i < effects.size(); ++i) {
    const auto* put = std::get_if<PutRun>(&effects[i]);
    if (put == nullptr) continue;
    const RunPhase phase = put->record.phase;
    const bool finished = phase == RunPhase::kFinished || phase == RunPhase::kStopped;
    std::vector<Effect> caused =
        state_->Apply(RunStateChanged{put->record.spec.job, !HasEnded(phase), finished},
                      {clock_.Now(), clock_.WallNanos()});
    std::move(caused.begin(), caused.end(), std::back_inserter(effects));
  }
}

void Applier::ApplyBatch(std::vector<Work>& batch) {
  if (invariants_.violated()) return Refuse(batch);
  std::vector<Effect> effects;
  // This comes first: otherwise an event could find an expired lease.
  if (state_ && resumed_) Apply(Tick{.resumed = true}, effects);
  for (Work& work : batch) {
    Register(work);
    if (!state_) continue;
    if (work.event) Apply(*work.event, effects);
    if (work.run_event) Apply(*work.run_event, effects);
  }
  if (state_ && at_.now - last_tick_ >= tick_) {
    last_tick_ = at_.now;
    Apply(Tick{}, effects);
  }
  if (state_) {
    FinishBatch(effects);
    ApplyRunChanges(effects);
  }
  Status status = UnavailableError("the metadata store is unavailable; try again");
  HOLDFAST_INVARIANT(invariants_, state_.has_value() == supervisor_.has_value(),
                     Kv("state", state_.has_value()), Kv("supervisor", supervisor_.has_value()));
  if (state_ && !invariants_.violated()) status = StoreBatch(effects);
  if (invariants_.violated()) {
    StopApplying();
    return Refuse(batch);
  }
  // The lease may have ended while this process was stopped: then another coordinator directs.
  if (status.ok() && !catalog_->Held()) status = LeaseEnded();
  if (status.ok()) {
    owners_.Publish(job_owners_);  // before the replies, on which further calls depend
    self_tests_.Set(supervisor_->SelfTests());
    Deliver(effects);
    if (MarksOf(effects).commit) HOLDFAST_CRASH_POINT("coordinator.after_publish");
  } else {
    Drop(status);
  }
}

Status Applier::StoreBatch(const std::vector<Effect>& effects) {
  const BatchMarks marks = MarksOf(effects);
  if (marks.commit) HOLDFAST_CRASH_POINT("coordinator.before_commit");
  HOLDFAST_RETURN_IF_ERROR(catalog_->Write(effects));
  if (marks.commit) HOLDFAST_CRASH_POINT("coordinator.after_commit_before_reply");
  if (marks.join) HOLDFAST_CRASH_POINT("coordinator.after_join");
  if (marks.decision) HOLDFAST_CRASH_POINT("coordinator.restore_decided");
  return Status::Ok();
}

void Applier::Deliver(const std::vector<Effect>& effects) {
  for (const Effect& effect : effects) {
    LogEffect(effect);
    if (const auto* reply = std::get_if<Reply>(&effect)) {
      auto handler = handlers_.find(reply->request);
      if (handler == handlers_.end()) continue;
      ReplyHandler call = std::move(handler->second);
      handlers_.erase(handler);
      call(reply);
    } else if (const auto* send = std::get_if<Send>(&effect)) {
      auto sink = sinks_.find(send->attach);
      if (sink != sinks_.end()) sink->second->Push(options_.epoch, send->directive);
    } else if (const auto* close = std::get_if<CloseAttach>(&effect)) {
      CloseSink(close->attach, close->why);
    } else if (const auto* restart = std::get_if<RunRestartCommand>(&effect)) {
      if (run_restart_command_) run_restart_command_(restart->incident);
    }
  }
}

void Applier::CloseSink(AttachId attach, const Status& why) {
  auto sink = sinks_.find(attach);
  if (sink == sinks_.end()) return;
  sink->second->Close(why);
  sinks_.erase(sink);
}

void Applier::AbandonClients(const Status& why) {
  for (auto& [request, handler] : std::exchange(handlers_, {})) handler(nullptr);
  for (auto& [attach, sink] : std::exchange(sinks_, {})) sink->Close(why);
}

void Applier::StopApplying() {
  Log(LogLevel::kError, "ApplierStopped", {Kv("why", invariants_.what())});
  reads_->Withdraw();
  publish_not_before_ = published_at_ = {};
  state_.reset();
  supervisor_.reset();
  // Without a catalog the violation was found while the store was loaded.
  if (catalog_ == nullptr) return;
  const Result<Records> records = catalog_->Read();
  if (!records) {
    Log(LogLevel::kError, "StoreUnusable", {Kv("why", records.error().ToString())});
    return;
  }
  Result<State> state = State::Load(options_, *records, at_);
  if (!state) return;
  state_.emplace(*std::move(state));
  supervisor_.emplace(run_options_, *records, at_);
}

void Applier::Refuse(std::vector<Work>& batch) {
  for (Work& work : batch) Register(work);
  AbandonClients(
      UnavailableError("the coordinator has stopped: an invariant is violated; see the section "
                       "INVARIANT_VIOLATED of the runbook"));
}

}  // namespace holdfast::coord
