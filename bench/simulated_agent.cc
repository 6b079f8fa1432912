#include "bench/simulated_agent.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "coordinator/api/channel.h"
#include "coordinator/api/convert.h"

namespace holdfast::bench {
namespace {
namespace pb = ::holdfast::coordinator;
// The times of GrpcCoordinatorLink.
constexpr auto kObserveAllowance = std::chrono::milliseconds(20);  // polls are not exactly periodic
constexpr auto kHeartbeat = std::chrono::milliseconds(500);
constexpr auto kRetry = std::chrono::milliseconds(100);
constexpr auto kRetryMax = std::chrono::milliseconds(1000);
constexpr int64_t kCallTimeoutMs = 5'000;
constexpr int64_t kObserveTimeoutMs = 1'000;
constexpr uint64_t kSlotBytes = 1 << 30;
constexpr uint64_t kImageBytes = 1 << 30;
constexpr uint64_t kMixing = 0x9e3779b97f4a7c15;  // makes different digests of different shards

gpr_timespec After(int64_t ms) {
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(ms, GPR_TIMESPAN));
}

/// A separate connection, with the delays of coord::MakeChannel: gRPC would let all agents of
/// this process share one.
std::shared_ptr<grpc::Channel> OwnChannel(const Endpoint& endpoint) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetMaxReceiveMessageSize(coord::kControlMessageBytesMax);
  auto credentials = coord::MakeChannelCredentials(endpoint, {});
  return grpc::CreateCustomChannel(coord::GrpcTarget(endpoint),
                                   credentials ? *credentials : grpc::InsecureChannelCredentials(),
                                   arguments);
}

ShardKey KeyOf(uint64_t incarnation, uint64_t step, uint32_t rank) {
  return {kLoadJob, {Incarnation{incarnation}, Step{step}}, Rank{rank}};
}

pb::ArenaUse LoadArena() {
  pb::ArenaUse arena;
  arena.set_bytes(16 * kSlotBytes);
  arena.set_reserved_bytes(12 * kSlotBytes);
  return arena;
}
}  // namespace

template <typename Request, typename Reply>
struct SimulatedAgent::Call {
  grpc::ClientContext context;
  Request request;
  Reply reply;
};

/// One Attach stream. Deletes itself when the call has ended.
class SimulatedAgent::Stream : public grpc::ClientReadReactor<pb::Directive> {
 public:
  Stream(SimulatedAgent& agent, pb::AttachRequest request)
      : agent_(agent), request_(std::move(request)) {}
  void Start() {
    agent_.stub_->async()->Attach(&context_, &request_, this);
    StartRead(&directive_);
    StartCall();
  }
  void Cancel() { context_.TryCancel(); }
  void OnReadDone(bool ok) override {
    if (!ok) return;
    agent_.OnDirective(directive_);
    StartRead(&directive_);
  }
  void OnDone(const grpc::Status& status) override {
    const std::unique_ptr<Stream> last(this);
    agent_.OnStreamEnd(status);
  }

 private:
  SimulatedAgent& agent_;
  const pb::AttachRequest request_;
  grpc::ClientContext context_;
  pb::Directive directive_;
};

SimulatedAgent::SimulatedAgent(const Endpoint& endpoint, uint32_t number, uint32_t first_rank,
                               uint32_t ranks, uint32_t world, LoadObserver& observer)
    : node_(fmt::format("n{}", number)),
      start_(uint64_t{1} << 32 | number),
      first_rank_(first_rank),
      ranks_(ranks),
      world_(world),
      observer_(observer),
      stub_(pb::Coordinator::NewStub(OwnChannel(endpoint))) {}

SimulatedAgent::~SimulatedAgent() {
  std::unique_lock lock(mutex_);
  stopping_ = true;
  if (stream_ != nullptr) stream_->Cancel();
  idle_.wait(lock, [this] { return calls_ == 0; });
}

void SimulatedAgent::Turn(Clock::time_point now) {
  std::set<uint32_t> join;
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return;
    if (attached_) join = std::exchange(to_join_, {});
  }
  for (const uint32_t rank : join) Join(rank);
  bool attach = false;
  bool report = false;
  {
    std::lock_guard lock(mutex_);
    attach = stream_ == nullptr && now >= attach_at_;
    report =
        attached_ && !reporting_ && (now >= report_at_ || !stored_.empty() || !removed_.empty());
  }
  if (attach) Attach();
  if (report) Report();
}

void SimulatedAgent::Attach() {
  pb::AttachRequest request;
  request.set_cluster("load");
  request.set_node(node_);
  request.set_agent_start(start_);
  request.set_agent_id(start_);
  request.set_data_address("unix:/nowhere/" + node_);
  request.set_no_parity(true);
  request.set_disk_free_percent(50);
  *request.mutable_arena() = LoadArena();
  Stream* stream = nullptr;
  {
    std::lock_guard lock(mutex_);
    if (stopping_ || stream_ != nullptr) return;
    request.set_epoch_seen(0);
    for (uint32_t rank = first_rank_; incarnation_ != 0 && rank < first_rank_ + ranks_; ++rank) {
      coord::ToProto(LocalRank{kLoadJob, Incarnation{incarnation_}, Rank{rank}},
                     request.add_ranks());
    }
    for (const Place& place : held_) AddReplicas(place, request.mutable_replicas());
    if (sent_ < saved_) observer_.OnReportSent(sent_ = saved_);
    stored_.clear();
    removed_.clear();
    stream = std::make_unique<Stream>(*this, std::move(request)).release();
    stream_ = stream;
    ++calls_;
  }
  stream->Start();
}

void SimulatedAgent::OnDirective(const pb::Directive& directive) {
  bool first = false;
  uint64_t step = 0;
  {
    std::lock_guard lock(mutex_);
    first = !attached_;
    attached_ = true;
    epoch_ = directive.epoch();
    if (first) report_at_ = Clock::now() + kHeartbeat;
    const pb::Version& committed = directive.job().memory_committed();
    if (directive.has_job() && directive.job().job() == kLoadJob &&
        committed.incarnation() == incarnation_ && committed.step() > committed_) {
      step = committed_ = committed.step();
      OnCommit(step);
    }
    if (directive.has_remove() && directive.remove().job() == kLoadJob) {
      Remove({directive.remove().version().step(), static_cast<Tier>(directive.remove().tier())});
    }
  }
  if (first) observer_.OnAttached();
  if (step != 0) observer_.OnCommitted(step);
}

void SimulatedAgent::OnStreamEnd(const grpc::Status& status) {
  bool was_attached = false;
  {
    std::lock_guard lock(mutex_);
    was_attached = std::exchange(attached_, false);
    stream_ = nullptr;
    attach_wait_ = was_attached ? kRetry : std::min(2 * attach_wait_, kRetryMax);
    attach_at_ = Clock::now() + attach_wait_;
  }
  if (was_attached) observer_.OnDetached();
  const bool refused = !status.ok() && status.error_code() != grpc::StatusCode::UNAVAILABLE &&
                       status.error_code() != grpc::StatusCode::CANCELLED;
  if (refused) observer_.OnRefused(node_ + ": " + status.error_message());
  EndCall();
}

void SimulatedAgent::JoinRanks() {
  std::lock_guard lock(mutex_);
  for (uint32_t rank = first_rank_; rank < first_rank_ + ranks_; ++rank) to_join_.insert(rank);
}

void SimulatedAgent::Join(uint32_t rank) {
  auto call = std::make_shared<Call<pb::JoinRequest, pb::JoinReply>>();
  call->request.set_node(node_);
  call->request.set_agent_start(start_);
  call->request.set_job(kLoadJob);
  call->request.set_run_id("run");
  call->request.set_rank(rank);
  call->request.set_world(world_);
  call->request.set_slot_bytes(kSlotBytes);
  call->context.set_deadline(After(kCallTimeoutMs));
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return;
    ++calls_;
  }
  stub_->async()->Join(&call->context, &call->request, &call->reply,
                       [this, call, rank](const grpc::Status& sent) {
                         const bool joined = sent.ok() && call->reply.outcome().code() == 0;
                         {
                           std::lock_guard lock(mutex_);
                           if (joined) incarnation_ = call->reply.incarnation();
                           if (!joined) to_join_.insert(rank);
                         }
                         if (joined) observer_.OnJoined();
                         EndCall();
                       });
}

void SimulatedAgent::Add(Place place) {
  held_.insert(place);
  stored_.insert(place);
}

void SimulatedAgent::Remove(Place place) {
  if (held_.erase(place) == 0) return;
  stored_.erase(place);
  removed_.insert(place);
}

void SimulatedAgent::OnCommit(uint64_t step) {
  const Places held = held_;
  for (const Place& place : held) {
    if (place.second == Tier::kMemory && place.first < step) Remove(place);
  }
  if (held.contains({step, Tier::kMemory})) Add({step, Tier::kDisk});
}

void SimulatedAgent::AddReplicas(Place place,
                                 google::protobuf::RepeatedPtrField<pb::StoredReplica>* to) const {
  for (uint32_t rank = first_rank_; rank < first_rank_ + ranks_; ++rank) {
    const ShardKey key = KeyOf(incarnation_, place.first, rank);
    coord::ToProto(StoredReplica{{key.job, key.version, key.rank, world_},
                                 place.second,
                                 place.first * kMixing + rank,
                                 kImageBytes},
                   to->Add());
  }
}

void SimulatedAgent::Save(uint64_t step) {
  {
    std::lock_guard lock(mutex_);
    Add({step, Tier::kMemory});
    saved_ = step;
    if (!attached_ || reporting_) return;
  }
  Report();
}

void SimulatedAgent::Report() {
  auto call = std::make_shared<Call<pb::ReportRequest, pb::ReportReply>>();
  pb::ReportRequest& request = call->request;
  request.set_node(node_);
  request.set_agent_start(start_);
  request.set_disk_free_percent(50);
  *request.mutable_arena() = LoadArena();
  call->context.set_deadline(After(kCallTimeoutMs));
  Places stored;
  Places removed;
  uint64_t first = 0;
  {
    std::lock_guard lock(mutex_);
    if (stopping_ || reporting_ || !attached_) return;
    reporting_ = true;
    ++calls_;
    request.set_epoch(epoch_);
    stored = std::exchange(stored_, {});
    removed = std::exchange(removed_, {});
    for (const Place& place : stored) AddReplicas(place, request.mutable_replicas());
    for (uint32_t rank = first_rank_; rank < first_rank_ + ranks_; ++rank) {
      for (const Place& place : removed) {
        coord::ToProto(RemovedReplica{KeyOf(incarnation_, place.first, rank), place.second},
                       request.add_removed());
      }
      if (incarnation_ == 0) continue;
      coord::ToProto(LocalRank{kLoadJob, Incarnation{incarnation_}, Rank{rank}},
                     request.add_ranks());
    }
    if (sent_ < saved_ && stored.contains({saved_, Tier::kMemory})) first = sent_ = saved_;
  }
  if (first != 0) observer_.OnReportSent(first);
  stub_->async()->Report(&call->context, &call->request, &call->reply,
                         [this, call, stored, removed](const grpc::Status& sent) {
                           OnReportDone(stored, removed, sent, call->reply);
                         });
}

void SimulatedAgent::OnReportDone(const Places& stored, const Places& removed,
                                  const grpc::Status& sent, const pb::ReportReply& reply) {
  const pb::Outcome& outcome = reply.outcome();
  const bool acknowledged = sent.ok() && outcome.code() == 0;
  {
    std::lock_guard lock(mutex_);
    reporting_ = false;
    const auto pause =
        std::max<Clock::duration>(kHeartbeat, std::chrono::milliseconds(reply.pause_ms()));
    report_at_ = Clock::now() + (acknowledged ? pause : kRetry);
    if (!acknowledged) {
      for (const Place& place : stored) {
        if (held_.contains(place)) stored_.insert(place);
      }
      removed_.insert(removed.begin(), removed.end());
      if (stream_ != nullptr) stream_->Cancel();  // attach again, as after Fenced
    }
  }
  if (sent.ok() && outcome.code() != 0) observer_.OnRefused(node_ + ": " + outcome.message());
  EndCall();
}

bool SimulatedAgent::Observe(uint64_t number, uint64_t step) {
  auto call = std::make_shared<Call<pb::ObserveRequest, pb::ObserveReply>>();
  call->context.set_deadline(After(kObserveTimeoutMs));
  {
    std::lock_guard lock(mutex_);
    if (stopping_ || !attached_) return false;
    AddDigest(number, step);
    const auto now = Clock::now();
    if (now + kObserveAllowance < observe_at_) return false;
    observe_at_ = now + observe_pause_;
    ++calls_;
    call->request = std::exchange(telemetry_, {});
  }
  call->request.set_node(node_);
  call->request.set_agent_start(start_);
  stub_->async()->Observe(&call->context, &call->request, &call->reply,
                          [this, call](const grpc::Status& sent) {
                            if (sent.ok()) {
                              std::lock_guard lock(mutex_);
                              observe_pause_ = std::chrono::milliseconds(call->reply.pause_ms());
                            }
                            EndCall();
                          });
  return true;
}

void SimulatedAgent::AddDigest(uint64_t number, uint64_t step) {
  pb::Digest* digest = telemetry_.add_digests();
  digest->set_job(kLoadJob);
  digest->set_incarnation(incarnation_);
  digest->set_world(world_);
  digest->set_number(number);
  digest->set_taken_ns(static_cast<uint64_t>(Clock::now().time_since_epoch().count()));
  for (uint32_t rank = first_rank_; rank < first_rank_ + ranks_; ++rank) {
    pb::ObservedRank* observed = digest->add_ranks();
    observed->set_rank(rank);
    observed->set_alive(true);
    observed->set_process_state('S');
    observed->set_step(step);
    observed->set_silent_ns(1'000'000);
    observed->set_since_step_ns(50'000'000);
  }
}

void SimulatedAgent::EndCall() {
  std::lock_guard lock(mutex_);
  --calls_;
  idle_.notify_all();
}

}  // namespace holdfast::bench
