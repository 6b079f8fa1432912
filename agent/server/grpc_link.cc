#include "agent/server/grpc_link.h"

#include <fmt/format.h>
#include <grpc/support/time.h>

#include <algorithm>

#include "agent/server/self_tester.h"
#include "base/clock.h"
#include "base/crash_point.h"
#include "base/log.h"
#include "coordinator/api/convert.h"
#include "coordinator/api/run_convert.h"

namespace holdfast::agent {
namespace {

namespace pb = ::holdfast::coordinator;

constexpr int64_t kRetryMinMs = 100;
constexpr int64_t kRetryMaxMs = 1000;
constexpr int64_t kHeartbeatPauseMaxMs = 1000;  // upper limit for the coordinator's pause
constexpr int64_t kReportTimeoutMs = 5'000;
constexpr int64_t kJoinTimeoutMs = 5'000;
constexpr int64_t kPlacesTimeoutMs = 10'000;
constexpr int64_t kObserveTimeoutMs = 1'000;
constexpr std::chrono::milliseconds kSilentStream(50);
// With several coordinators: a coordinator that is silent for kSearchAfterMs may be replaced.
constexpr int64_t kSearchAfterMs = 700;
constexpr int64_t kSearchPauseMs = 250;
constexpr int64_t kSearchTimeoutMs = 1'000;
// A server that takes longer for an answer from memory is stopped, or as good as that.
constexpr int64_t kAliveTimeoutMs = 300;
constexpr int64_t kSearchMaxMs = 400;
constexpr size_t kStrangerRounds = 10;

gpr_timespec After(int64_t ms) {
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(ms, GPR_TIMESPAN));
}

/// `unlabeled`: see SeenLife.
void AddReplicas(const std::vector<StoredReplica>& replicas, LifeId unlabeled,
                 google::protobuf::RepeatedPtrField<pb::StoredReplica>* out) {
  for (const StoredReplica& report : replicas) {
    pb::StoredReplica* wire = out->Add();
    coord::ToProto(report, wire);
    if (report.life.value == 0) wire->set_life(unlabeled.value);
  }
}

// A call of the callback interface; it lives until its callback has run.
template <typename Request, typename Response>
struct Call {
  grpc::ClientContext context;
  Request request;
  Response response;
};

}  // namespace

GrpcCoordinatorLink::GrpcCoordinatorLink(GrpcLinkOptions options,
                                         std::unique_ptr<coord::LeaderChannel> coordinators,
                                         const Clock& clock)
    : options_(std::move(options)),
      coordinators_(std::move(coordinators)),
      clock_(clock),
      seen_(options_.seen),
      heartbeat_pause_ms_(options_.heartbeat_ms) {}

GrpcCoordinatorLink::~GrpcCoordinatorLink() { Stop(); }

void GrpcCoordinatorLink::Start(DirectiveHandler& handler, const std::string& data_address) {
  handler_ = &handler;
  data_address_ = data_address;
  attach_thread_ = std::thread([this] { AttachLoop(); });
  send_thread_ = std::thread([this] { SendLoop(); });
  if (coordinators_->size() > 1) search_thread_ = std::thread([this] { SearchLoop(); });
}

void GrpcCoordinatorLink::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    for (grpc::ClientContext* context : calls_) context->TryCancel();
    changed_.NotifyAll();
  }
  reports_.Wake();
  if (attach_thread_.joinable()) attach_thread_.join();
  if (send_thread_.joinable()) send_thread_.join();
  if (search_thread_.joinable()) search_thread_.join();
  MutexLock lock(mutex_);
  while (!calls_.empty()) changed_.Wait(mutex_);
}

bool GrpcCoordinatorLink::attached() {
  MutexLock lock(mutex_);
  return attached_;
}

void GrpcCoordinatorLink::SetWarnings(std::vector<std::string> warnings) {
  MutexLock lock(warnings_mutex_);
  node_warnings_ = std::move(warnings);
  ReportWarnings();
}

void GrpcCoordinatorLink::SetHostWarnings(std::vector<std::string> warnings) {
  MutexLock lock(warnings_mutex_);
  host_warnings_ = std::move(warnings);
  ReportWarnings();
}

void GrpcCoordinatorLink::ReportWarnings() {
  std::vector<std::string> all = host_warnings_;
  if (!clock_warning_.text().empty()) all.push_back(clock_warning_.text());
  all.insert(all.end(), node_warnings_.begin(), node_warnings_.end());
  reports_.SetWarnings(std::move(all));
}

bool GrpcCoordinatorLink::AwaitAttached(int64_t timeout_ms) {
  const auto deadline = clock_.Now() + std::chrono::milliseconds(timeout_ms);
  MutexLock lock(mutex_);
  while (!attached_ && !stopping_) {
    if (!changed_.WaitUntil(mutex_, deadline)) break;
  }
  return attached_;
}

bool GrpcCoordinatorLink::Pause(int64_t ms) {
  MutexLock lock(mutex_);
  if (!stopping_) changed_.WaitFor(mutex_, std::chrono::milliseconds(ms));
  return !stopping_;
}

bool GrpcCoordinatorLink::BeginCall(grpc::ClientContext* context) {
  MutexLock lock(mutex_);
  if (stopping_) return false;
  calls_.insert(context);
  return true;
}

void GrpcCoordinatorLink::BeginAsking() {
  MutexLock lock(mutex_);
  asked_since_ = clock_.Now();
}

void GrpcCoordinatorLink::EndAsking() {
  MutexLock lock(mutex_);
  asked_since_.reset();
}

void GrpcCoordinatorLink::EndCall(grpc::ClientContext* context) {
  MutexLock lock(mutex_);
  calls_.erase(context);
  changed_.NotifyAll();
}

// ---- attach ----

void GrpcCoordinatorLink::AttachLoop() {
  int64_t wait_ms = kRetryMinMs;
  std::string last_error;
  for (;;) {
    Status status = AttachOnce();
    bool was_attached = false;
    {
      MutexLock lock(mutex_);
      was_attached = std::exchange(attached_, false);
      stream_ = nullptr;
      if (stopping_) return;
      if (std::exchange(planned_, false)) continue;
    }
    if (was_attached || status.ToString() != last_error) {
      last_error = status.ToString();
      Log(LogLevel::kWarn, was_attached ? "CoordinatorLost" : "CoordinatorNotReached",
          {Kv("error", last_error)});
    }
    const int64_t wait_max_ms = coordinators_->size() > 1 ? kSearchMaxMs : kRetryMaxMs;
    wait_ms = was_attached ? kRetryMinMs : std::min(wait_ms * 2, wait_max_ms);
    if (!Pause(wait_ms)) return;
  }
}

std::optional<GrpcCoordinatorLink::Leading> GrpcCoordinatorLink::AskWhetherItLeads(
    size_t coordinator, grpc::ClientContext* context, int64_t timeout_ms) {
  pb::GetStatusRequest request;
  request.set_job("-");  // only the epoch is needed, no job's status
  pb::GetStatusReply reply;
  context->set_deadline(After(timeout_ms));
  if (!BeginCall(context)) return std::nullopt;
  const grpc::Status sent = coordinators_->stub(coordinator).GetStatus(context, request, &reply);
  EndCall(context);
  if (!sent.ok() || reply.epoch() == 0) return std::nullopt;
  return Leading{LifeId{reply.life()}, Epoch{reply.epoch()}, reply.relay()};
}

Status GrpcCoordinatorLink::FindLeader() {
  const size_t asked = coordinators_->current();
  const std::string& address = coordinators_->address(asked);
  grpc::ClientContext context;
  const std::optional<Leading> leading = AskWhetherItLeads(asked, &context, kSearchTimeoutMs);
  LifeId life;
  {
    MutexLock lock(mutex_);
    life = seen_.life;
  }
  if (leading && (life.value == 0 || leading->life == life)) {
    strangers_ = 0;
    return Status::Ok();
  }
  // A coordinator with another store, started by mistake, leads too. This agent follows
  // another life only when it finds no leader of the known life.
  if (leading && ++strangers_ > kStrangerRounds * coordinators_->size()) return Status::Ok();
  coordinators_->Follow(asked, context);
  return UnavailableError(leading ? "the coordinator at " + address +
                                        " has another store: this agent follows it if it finds "
                                        "no other leader"
                                  : "the coordinator at " + address +
                                        " does not lead or cannot be reached");
}

void GrpcCoordinatorLink::SearchLoop() {
  while (Pause(kSearchPauseMs)) {
    SearchLeader();
    ReturnToRelay();
  }
}

void GrpcCoordinatorLink::SearchLeader() {
  SeenLife seen;
  {
    MutexLock lock(mutex_);
    if (!asked_since_) return;
    const auto silent = clock_.Now() - *asked_since_;
    if (silent < std::chrono::milliseconds(kSearchAfterMs)) return;
    seen = seen_;
  }
  const size_t current = coordinators_->current();
  // A relay, or the coordinator behind it, may be stopped. Only a relay that answers nothing is
  // left for another way to the same leader.
  grpc::ClientContext asked;
  const bool answers = AskWhetherItLeads(current, &asked, kAliveTimeoutMs).has_value();
  for (size_t other = 0; other < coordinators_->size(); ++other) {
    if (other == current) continue;
    grpc::ClientContext context;
    const std::optional<Leading> leading = AskWhetherItLeads(other, &context, kSearchTimeoutMs);
    if (!leading || leading->life != seen.life || leading->epoch < seen.epoch) continue;
    if (leading->epoch == seen.epoch && answers) continue;
    Log(LogLevel::kWarn, "CoordinatorSilent",
        {Kv("coordinator", coordinators_->address(current)),
         Kv("leader", coordinators_->address(other))});
    return Switch(other);
  }
}

void GrpcCoordinatorLink::ReturnToRelay() {
  const size_t current = coordinators_->current();
  const Clock::TimePoint now = clock_.Now();
  const bool moved = std::exchange(away_at_, current) != current;
  if (options_.relay_return_ms == 0 || current == 0 || (!moved && now < return_at_)) return;
  // Each agent waits for another time, so that not all return at once.
  const size_t spread =
      std::hash<std::string>()(options_.node + std::to_string(now.time_since_epoch().count()));
  const auto wait = options_.relay_return_ms / 2 +
                    static_cast<int64_t>(spread % static_cast<uint64_t>(options_.relay_return_ms));
  return_at_ = now + std::chrono::milliseconds(wait);
  if (moved) return;
  SeenLife seen;
  {
    MutexLock lock(mutex_);
    if (!attached_) return;
    seen = seen_;
  }
  for (size_t earlier = 0; earlier < current; ++earlier) {
    grpc::ClientContext context;
    const std::optional<Leading> leading = AskWhetherItLeads(earlier, &context, kSearchTimeoutMs);
    if (!leading || !leading->relay) continue;
    if (leading->life != seen.life || leading->epoch < seen.epoch) continue;
    Log(LogLevel::kInfo, "RelayReturned",
        {Kv("relay", coordinators_->address(earlier)),
         Kv("instead_of", coordinators_->address(current))});
    // Calls that the current address serves go on there.
    coordinators_->Choose(earlier);
    return AttachAgain(/*planned=*/true);
  }
}

void GrpcCoordinatorLink::Switch(size_t coordinator) {
  coordinators_->Choose(coordinator);
  MutexLock lock(mutex_);
  attached_ = false;
  asked_since_.reset();
  for (grpc::ClientContext* context : calls_) context->TryCancel();
  changed_.NotifyAll();
}

Status GrpcCoordinatorLink::AttachOnce() {
  if (coordinators_->size() > 1) HOLDFAST_RETURN_IF_ERROR(FindLeader());
  const size_t asked = coordinators_->current();
  pb::AttachRequest request;
  request.set_cluster(options_.cluster);
  request.set_node(options_.node);
  request.set_agent_start(options_.agent_start);
  request.set_agent_id(options_.agent_id);
  request.set_data_address(data_address_);
  request.set_peer_address(options_.peer_address());
  request.set_no_parity(options_.no_parity);
  for (const auto& [name, value] : options_.labels) (*request.mutable_labels())[name] = value;
  request.set_disk_free_percent(options_.disk_free_percent());
  coord::ToProto(options_.arena_use(), request.mutable_arena());
  const ReportBatch inventory = reports_.Inventory();
  for (const std::string& warning : inventory.warnings) request.add_warnings(warning);
  for (const LocalRank& rank : inventory.ranks) coord::ToProto(rank, request.add_ranks());
  for (const VersionCommit& one : inventory.commits) coord::ToProto(one, request.add_commits());
  request.set_disk_every(options_.disk_every);
  request.set_shared_tiers(options_.shared_tiers);
  request.set_worker_address(options_.worker_address);
  request.set_worker_users(true);
  AddWorkers(&request);
  {
    MutexLock lock(mutex_);
    request.set_epoch_seen(seen_.epoch.value);
    request.set_life_seen(seen_.life.value);
    AddReplicas(inventory.replicas, seen_.unlabeled, request.mutable_replicas());
  }
  grpc::ClientContext context;
  if (!BeginCall(&context)) return CancelledError("the agent is stopping");
  // Set before the stream opens, so that AwaitAttachedToSend() can detect a silent stream.
  {
    MutexLock lock(mutex_);
    stream_ = &context;
    stream_at_ = asked;
    stream_since_ = clock_.Now();
  }
  auto reader = coordinators_->stub(asked).Attach(&context, request);
  pb::Directive directive;
  while (reader->Read(&directive)) {
    if (!Handle(directive)) {
      context.TryCancel();
      break;
    }
  }
  const grpc::Status finished = reader->Finish();
  {
    MutexLock lock(mutex_);
    stream_ = nullptr;
  }
  EndCall(&context);
  if (finished.error_code() == grpc::StatusCode::UNAVAILABLE) {
    coordinators_->Follow(asked, context);
  }
  Status status = coord::FromGrpc(finished, "the coordinator");
  return status.ok() ? UnavailableError("the coordinator ended the connection") : status;
}

bool GrpcCoordinatorLink::AcceptEpoch(const coordinator::Directive& directive, bool* first) {
  SeenLife now;
  bool store = false;
  {
    MutexLock lock(mutex_);
    if (stopping_) return false;
    now.life = directive.life() == 0 ? seen_.life : LifeId{directive.life()};
    now.epoch = Epoch{directive.epoch()};
    now.unlabeled = seen_.unlabeled.value != 0 ? seen_.unlabeled : now.life;
    if (now.life == seen_.life && now.epoch < seen_.epoch) {
      Log(LogLevel::kError, "StaleCoordinator",
          {Kv("epoch", directive.epoch()), Kv("seen", seen_.epoch.value)});
      return false;
    }
    store = now != last_stored_;
  }
  // Stored before the directive takes effect, so that a restarted agent refuses older epochs, too.
  if (store) {
    const Status stored = options_.store_seen(now);
    if (!stored.ok()) {
      Log(LogLevel::kWarn, "LifeNotStored",
          {Kv("life", ToString(now.life)), Kv("error", stored.ToString()),
           Kv("effect", "after a restart this agent may accept an older coordinator store")});
    }
    last_stored_ = now;
  }
  if (now.life.value != 0 && now.life != reported_life_) {
    reported_life_ = now.life;
    handler_->OnLife(now);
  }
  MutexLock lock(mutex_);
  if (stopping_) return false;
  seen_ = now;
  *first = !attached_;
  attached_ = true;
  changed_.NotifyAll();
  return true;
}

bool GrpcCoordinatorLink::Handle(const coordinator::Directive& directive) {
  bool first = false;
  if (!AcceptEpoch(directive, &first)) return false;
  if (first) {
    Log(LogLevel::kInfo, "CoordinatorAttached", {Kv("epoch", directive.epoch())});
    reports_.Wake();
  }
  const auto refuse = [](const Status& status) {
    Log(LogLevel::kError, "DirectiveRefused", {Kv("error", status.ToString())});
  };
  switch (directive.kind_case()) {
    case pb::Directive::kJob: {
      auto state = coord::FromProto(directive.job());
      if (state && options_.owners != nullptr) {
        if (state->forget) {
          options_.owners->Erase(state->job);
        } else {
          options_.owners->Set(state->job, state->owner);
        }
      }
      state ? handler_->OnJobState(*std::move(state)) : refuse(state.error());
      break;
    }
    case pb::Directive::kPrepare: {
      auto prepare = coord::FromProto(directive.prepare());
      prepare ? handler_->OnPrepareShard(*std::move(prepare)) : refuse(prepare.error());
      break;
    }
    case pb::Directive::kRemove: {
      auto remove = coord::FromProto(directive.remove());
      remove ? handler_->OnRemoveVersion(*std::move(remove)) : refuse(remove.error());
      break;
    }
    case pb::Directive::kWorkers: {
      auto workers = coord::FromProto(directive.workers());
      if (!workers) {
        refuse(workers.error());
      } else if (options_.set_workers) {
        options_.set_workers(*std::move(workers));
      }
      break;
    }
    case pb::Directive::KIND_NOT_SET:
      break;  // only carries the epoch
  }
  return true;
}

// ---- reports ----

void GrpcCoordinatorLink::SendLoop() {
  for (;;) {
    reports_.AwaitPending(static_cast<int>(heartbeat_pause_ms_));
    const std::optional<size_t> asked = AwaitAttachedToSend();
    if (!asked) return;
    if (reports_.NeedsAttach()) {
      AttachAgain();
      continue;
    }
    ReportBatch batch = reports_.Take();
    const bool disk = std::any_of(batch.replicas.begin(), batch.replicas.end(),
                                  [](const StoredReplica& one) { return one.tier == Tier::kDisk; });
    Status status = SendBatch(batch, *asked);
    if (status.ok()) {
      if (disk) HOLDFAST_CRASH_POINT("agent.after_report_disk");
      continue;
    }
    reports_.Return(std::move(batch));
    Log(LogLevel::kDebug, "ReportRepeated", {Kv("error", status.ToString())});
    // After a timeout the connection may be dead although neither side has closed it. An address
    // that the agent has left meanwhile fences its last report.
    const bool ended =
        status.code() == ErrorCode::kFenced || status.code() == ErrorCode::kDeadlineExceeded;
    if (ended && *asked == coordinators_->current()) AttachAgain();
    if (!Pause(kRetryMinMs)) return;
  }
}

void GrpcCoordinatorLink::AttachAgain(bool planned) {
  MutexLock lock(mutex_);
  attached_ = false;
  if (stream_ == nullptr) return;
  planned_ = planned;
  stream_->TryCancel();
}

std::optional<size_t> GrpcCoordinatorLink::AwaitAttachedToSend() {
  for (;;) {
    {
      MutexLock lock(mutex_);
      if (stopping_) return std::nullopt;
      if (attached_) return stream_at_;
      const bool silent = stream_ != nullptr && clock_.Now() - stream_since_ >= kSilentStream;
      if (!silent) {
        changed_.WaitFor(mutex_, kSilentStream);
        continue;
      }
    }
    QueryEpoch();
    if (!Pause(kSilentStream.count())) return std::nullopt;
  }
}

void GrpcCoordinatorLink::QueryEpoch() {
  pb::GetStatusRequest request;
  request.set_job("-");  // only the epoch is needed, no job's status
  pb::GetStatusReply reply;
  grpc::ClientContext context;
  context.set_deadline(After(kReportTimeoutMs));
  if (!BeginCall(&context)) return;
  BeginAsking();
  const grpc::Status sent = coordinators_->stub().GetStatus(&context, request, &reply);
  EndAsking();
  EndCall(&context);
  MutexLock lock(mutex_);
  if (!sent.ok() || stream_ == nullptr || attached_ || reply.epoch() == 0) return;
  // A new life must arrive on the stream first, where AcceptEpoch() handles it.
  if (reply.life() != 0 && LifeId{reply.life()} != seen_.life) return;
  if (Epoch{reply.epoch()} < seen_.epoch) {
    stream_->TryCancel();
    return;
  }
  seen_.epoch = Epoch{reply.epoch()};
  attached_ = true;
  changed_.NotifyAll();
  Log(LogLevel::kInfo, "CoordinatorAttached", {Kv("epoch", reply.epoch())});
}

Status GrpcCoordinatorLink::SendBatch(const ReportBatch& batch, size_t coordinator) {
  pb::ReportRequest request;
  request.set_node(options_.node);
  request.set_agent_start(options_.agent_start);
  {
    MutexLock lock(mutex_);
    request.set_epoch(seen_.epoch.value);
    AddReplicas(batch.replicas, seen_.unlabeled, request.mutable_replicas());
  }
  for (const FailedReplica& one : batch.failed) coord::ToProto(one, request.add_failed());
  for (const RemovedReplica& one : batch.removed) coord::ToProto(one, request.add_removed());
  for (const Prepared& one : batch.prepared) coord::ToProto(one, request.add_prepared());
  for (const std::string& warning : batch.warnings) request.add_warnings(warning);
  for (const LocalRank& rank : batch.ranks) coord::ToProto(rank, request.add_ranks());
  for (const TierWanted& one : batch.wanted) coord::ToProto(one, request.add_wanted());
  // Every message carries these, even one without reports: it serves as the heartbeat.
  request.set_disk_free_percent(options_.disk_free_percent());
  coord::ToProto(options_.arena_use(), request.mutable_arena());
  request.set_departing(departing_.load());
  AddWorkers(&request);
  if (options_.self_tester != nullptr) {
    request.set_self_tests(true);
    if (auto result = options_.self_tester->result()) {
      *request.mutable_self_test() = *std::move(result);
    }
  }

  grpc::ClientContext context;
  context.set_deadline(After(kReportTimeoutMs));
  if (!BeginCall(&context)) return CancelledError("the agent is stopping");
  pb::ReportReply reply;
  const auto begin = clock_.Now();
  BeginAsking();
  const grpc::Status sent = coordinators_->stub(coordinator).Report(&context, request, &reply);
  EndAsking();
  EndCall(&context);
  if (!sent.ok()) return coord::FromGrpc(sent, "the coordinator");
  if (reply.wall_nanos() != 0) {
    const ClockSkew skew = ClockSkew::OfCall(clock_, begin, reply.wall_nanos());
    MutexLock lock(warnings_mutex_);
    if (clock_warning_.Observe(skew)) ReportWarnings();
  }
  heartbeat_pause_ms_ =
      std::max(options_.heartbeat_ms, std::min<int64_t>(reply.pause_ms(), kHeartbeatPauseMaxMs));
  const Status outcome = coord::FromProto(reply.outcome());
  if (outcome.ok() && options_.self_tester != nullptr) {
    options_.self_tester->Request(reply.self_test());
  }
  return outcome;
}

Result<pb::ObserveReply> GrpcCoordinatorLink::Observe(pb::ObserveRequest request) {
  if (!attached()) return Fail(UnavailableError("the agent is not attached to the coordinator"));
  request.set_node(options_.node);
  request.set_agent_start(options_.agent_start);
  grpc::ClientContext context;
  context.set_deadline(After(kObserveTimeoutMs));
  if (!BeginCall(&context)) return Fail(CancelledError("the agent is stopping"));
  pb::ObserveReply reply;
  const grpc::Status sent = coordinators_->stub().Observe(&context, request, &reply);
  EndCall(&context);
  if (!sent.ok()) return Fail(coord::FromGrpc(sent, "the coordinator"));
  HOLDFAST_RETURN_IF_ERROR(coord::FromProto(reply.outcome()));
  return reply;
}

template <typename Request>
void GrpcCoordinatorLink::AddWorkers(Request* request) const {
  if (!options_.workers) return;
  for (const WorkerState& state : options_.workers()) {
    coord::ToProto(state, request->add_workers());
  }
}

// ---- requests ----

void GrpcCoordinatorLink::Join(const JoinRequest& request,
                               std::function<void(Result<Incarnation>)> done) {
  if (!attached()) {
    // The life of a save must be the coordinator's, so no rank may join before the life is known.
    done(Fail(UnavailableError("the agent is not attached to the coordinator yet; try again")));
    return;
  }
  // The callback shares ownership of the call, so the call lives until gRPC has run the callback.
  auto call = std::make_shared<Call<pb::JoinRequest, pb::JoinReply>>();
  call->request.set_node(options_.node);
  call->request.set_agent_start(options_.agent_start);
  coord::ToProto(request, &call->request);
  call->context.set_deadline(After(kJoinTimeoutMs));
  if (!BeginCall(&call->context)) {
    done(Fail(CancelledError("the agent is stopping")));
    return;
  }
  coordinators_->stub().async()->Join(
      &call->context, &call->request, &call->response,
      [this, call, done = std::move(done)](const grpc::Status& sent) {
        Status status = sent.ok() ? coord::FromProto(call->response.outcome())
                                  : coord::FromGrpc(sent, "the coordinator");
        // A call is cancelled when another coordinator leads.
        if (status.code() == ErrorCode::kDeadlineExceeded ||
            status.code() == ErrorCode::kCancelled) {
          status = UnavailableError(status.message());
        }
        if (status.ok()) {
          done(Incarnation{call->response.incarnation()});
        } else {
          done(Fail(status));
        }
        EndCall(&call->context);
      });
}

void GrpcCoordinatorLink::DecideRestore(const RestoreRequest& request,
                                        std::function<void(Result<RestoreDecision>)> done) {
  auto call = std::make_shared<Call<pb::DecideRestoreRequest, pb::DecideRestoreReply>>();
  call->request.set_node(options_.node);
  coord::ToProto(request, &call->request);
  call->context.set_deadline(After(request.timeout_ms));
  if (!BeginCall(&call->context)) {
    done(Fail(CancelledError("the agent is stopping")));
    return;
  }
  coordinators_->stub().async()->DecideRestore(
      &call->context, &call->request, &call->response,
      [this, call, done = std::move(done)](const grpc::Status& sent) {
        Status status = coord::FromGrpc(sent, "the coordinator");
        if (status.code() == ErrorCode::kCancelled) {
          status = UnavailableError(status.message());
        }
        done(sent.ok() ? coord::FromProto(call->response) : Fail(std::move(status)));
        EndCall(&call->context);
      });
}

void GrpcCoordinatorLink::FindPlaces(const std::string& job, VersionId version,
                                     std::function<void(Result<VersionPlaces>)> done) {
  auto call = std::make_shared<Call<pb::PlanRestoreRequest, pb::PlanRestoreReply>>();
  call->request.set_job(job);
  coord::ToProto(version, call->request.mutable_version());
  call->request.set_all_replicas(true);
  call->context.set_deadline(After(kPlacesTimeoutMs));
  if (!BeginCall(&call->context)) {
    done(Fail(CancelledError("the agent is stopping")));
    return;
  }
  coordinators_->stub().async()->PlanRestore(
      &call->context, &call->request, &call->response,
      [this, call, done = std::move(done)](const grpc::Status& sent) {
        if (sent.ok()) {
          done(coord::FromProto(call->response));
        } else {
          const Status status = coord::FromGrpc(sent, "the coordinator");
          done(Fail(UnavailableError(status.message())));
        }
        EndCall(&call->context);
      });
}

}  // namespace holdfast::agent
