#include "coordinator/server/service.h"

#include <fmt/format.h>

#include <atomic>

#include "coordinator/api/convert.h"
#include "coordinator/api/endpoint.h"
#include "coordinator/api/run_convert.h"
#include "coordinator/server/answers.h"
#include "coordinator/server/attach_stream.h"
#include "coordinator/server/calls.h"
#include "storage/base/log.h"

namespace holdfast::coord {
namespace {
constexpr size_t kWarningsMax = 64;
constexpr size_t kRunIdBytesMax = 128;
constexpr size_t kAddressBytesMax = 256;
constexpr uint64_t kKeepLastMax = 1'000'000;
constexpr size_t kLocalRanksMax = 65'536;

NodeHealth HealthOf(const google::protobuf::RepeatedPtrField<std::string>& warnings,
                    uint32_t disk_free_percent) {
  NodeHealth health;
  health.disk_free_percent = disk_free_percent;
  for (const std::string& warning : warnings) {
    if (health.warnings.size() == kWarningsMax) break;
    health.warnings.push_back(warning);
  }
  return health;
}

/// Converts each of `from`; the first bad one refuses them all.
template <typename Fact, typename Field>
Status ReadAll(const Field& from, std::vector<Fact>& to) {
  to.reserve(static_cast<size_t>(from.size()));
  for (const auto& proto : from) {
    HOLDFAST_ASSIGN_OR_RETURN(Fact fact, FromProto(proto));
    to.push_back(std::move(fact));
  }
  return Status::Ok();
}

Status ReadWorkers(const google::protobuf::RepeatedPtrField<pb::WorkerState>& from,
                   std::vector<WorkerState>& to) {
  if (static_cast<uint32_t>(from.size()) > kWorkersMax) {
    return InvalidArgumentError(
        fmt::format("{} workers on one node; at most {}", from.size(), kWorkersMax));
  }
  return ReadAll(from, to);
}

Status ReadRanks(const google::protobuf::RepeatedPtrField<pb::LocalRank>& from,
                 std::vector<LocalRank>& to) {
  if (static_cast<size_t>(from.size()) > kLocalRanksMax) {
    return InvalidArgumentError(
        fmt::format("{} trainers on one node; at most {}", from.size(), kLocalRanksMax));
  }
  return ReadAll(from, to);
}

Result<NodeAttached> ReadAttach(const pb::AttachRequest& request, const std::string& cluster) {
  if (request.cluster() != cluster) {
    return Fail(FailedPreconditionError(
        fmt::format("node {} belongs to cluster '{}', this coordinator serves '{}'", request.node(),
                    request.cluster(), cluster)));
  }
  HOLDFAST_RETURN_IF_ERROR(ValidateName("node", request.node()));
  auto address = ParseEndpoint(request.data_address());
  if (!address) return Fail(address.error().WithContext("data_address"));
  NodeAttached event;
  event.node = request.node();
  event.agent_start = request.agent_start();
  event.data_address = request.data_address();
  event.epoch_seen = Epoch{request.epoch_seen()};
  event.health = HealthOf(request.warnings(), request.disk_free_percent());
  if (!request.peer_address().empty()) {
    auto peer_address = ParseEndpoint(request.peer_address());
    if (!peer_address) return Fail(peer_address.error().WithContext("peer_address"));
  }
  event.peer_address = request.peer_address();
  HOLDFAST_ASSIGN_OR_RETURN(event.labels, FromProto(request.labels()));
  HOLDFAST_RETURN_IF_ERROR(ReadAll(request.holdings(), event.holdings));
  if (request.worker_address().size() > kAddressBytesMax) {
    return Fail(InvalidArgumentError("worker_address is too long to be one"));
  }
  event.worker_address = request.worker_address();
  HOLDFAST_RETURN_IF_ERROR(ReadWorkers(request.workers(), event.workers));
  HOLDFAST_RETURN_IF_ERROR(ReadRanks(request.ranks(), event.ranks));
  event.disk_every = request.disk_every();
  return event;
}

Result<NodeReported> ReadReport(const pb::ReportRequest& request) {
  HOLDFAST_RETURN_IF_ERROR(ValidateName("node", request.node()));
  NodeReported event;
  event.node = request.node();
  event.agent_start = request.agent_start();
  event.epoch = Epoch{request.epoch()};
  event.health = HealthOf(request.warnings(), request.disk_free_percent());
  HOLDFAST_RETURN_IF_ERROR(ReadAll(request.holdings(), event.holdings));
  HOLDFAST_RETURN_IF_ERROR(ReadAll(request.missing(), event.missing));
  HOLDFAST_RETURN_IF_ERROR(ReadAll(request.gone(), event.gone));
  for (const auto& prepared : request.prepared()) event.prepared.push_back(FromProto(prepared));
  HOLDFAST_RETURN_IF_ERROR(ReadWorkers(request.workers(), event.workers));
  HOLDFAST_RETURN_IF_ERROR(ReadRanks(request.ranks(), event.ranks));
  HOLDFAST_RETURN_IF_ERROR(ReadAll(request.wanted(), event.wanted));
  return event;
}

Result<RankJoined> ReadJoin(const pb::JoinRequest& request) {
  HOLDFAST_RETURN_IF_ERROR(ValidateName("node", request.node()));
  HOLDFAST_RETURN_IF_ERROR(ValidateName("job", request.job()));
  if (request.run_id().empty() || request.run_id().size() > kRunIdBytesMax) {
    return Fail(InvalidArgumentError(
        fmt::format("a run id has 1 to {} bytes; this one has {}. All ranks of one start of a job "
                    "pass the same, each start a new one",
                    kRunIdBytesMax, request.run_id().size())));
  }
  RankJoined event;
  event.node = request.node();
  event.agent_start = request.agent_start();
  event.job = request.job();
  event.run_id = request.run_id();
  event.rank = Rank{request.rank()};
  event.world = request.world();
  event.uid = request.uid();
  if (request.slot_bytes() > kSlotBytesMax) {
    return Fail(InvalidArgumentError(
        fmt::format("slots of {} bytes; at most {}", request.slot_bytes(), kSlotBytesMax)));
  }
  event.slot_bytes = request.slot_bytes();
  return event;
}

/// A call that ends when the applier answers, or when its caller is gone.
class WaitingCall : public grpc::ServerUnaryReactor {
 public:
  explicit WaitingCall(std::function<void()> on_cancel) : on_cancel_(std::move(on_cancel)) {}
  /// True for exactly one of those who want to end the call: only it may touch the reply.
  bool Claim() { return !claimed_.exchange(true); }
  void OnCancel() override {
    if (!Claim()) return;
    on_cancel_();
    Finish(grpc::Status::CANCELLED);
  }
  void OnDone() override { std::unique_ptr<WaitingCall> last(this); }

 private:
  const std::function<void()> on_cancel_;
  std::atomic<bool> claimed_{false};
};
}  // namespace

grpc::ServerWriteReactor<pb::Directive>* CoordinatorService::Attach(
    grpc::CallbackServerContext*, const pb::AttachRequest* request) {
  auto event = ReadAttach(*request, cluster_);
  if (!event) {
    Log(LogLevel::kWarn, "AttachRefused",
        {Kv("node", request->node()), Kv("why", event.error().ToString())});
    auto refused = AttachStream::Make([] {});
    refused->Close(event.error());
    return refused.get();
  }
  event->attach = applier_.NextId();
  Log(LogLevel::kInfo, "NodeAttaching",
      {Kv("node", event->node), Kv("agent_start", event->agent_start),
       Kv("holdings", event->holdings.size()), Kv("data_address", event->data_address)});
  auto stream = AttachStream::Make([this, node = event->node, attach = event->attach] {
    applier_.Submit(NodeDetached{node, attach});
  });
  AttachStream* raw = stream.get();
  applier_.Attach(*std::move(event), std::move(stream));
  return raw;
}

grpc::ServerUnaryReactor* CoordinatorService::Report(grpc::CallbackServerContext* context,
                                                     const pb::ReportRequest* request,
                                                     pb::ReportReply* reply) {
  auto event = ReadReport(*request);
  if (!event) return Refuse(context, reply, event.error());
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const RequestId id = event->request = applier_.NextId();
  applier_.Submit(*std::move(event), id, AnswerInto(reactor, reply, [](const Reply&) {}));
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorService::Join(grpc::CallbackServerContext* context,
                                                   const pb::JoinRequest* request,
                                                   pb::JoinReply* reply) {
  auto event = ReadJoin(*request);
  if (!event) return Refuse(context, reply, event.error());
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const RequestId id = event->request = applier_.NextId();
  applier_.Submit(*std::move(event), id, AnswerInto(reactor, reply, [reply](const Reply& r) {
    reply->set_incarnation(r.incarnation.value);
  }));
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorService::DecideRestore(grpc::CallbackServerContext* context,
                                                            const pb::DecideRestoreRequest* request,
                                                            pb::DecideRestoreReply* reply) {
  Status status = ValidateName("node", request->node());
  if (status.ok()) status = ValidateName("job", request->job());
  if (!status.ok()) return Refuse(context, reply, status);
  RestoreWanted event;
  event.request = applier_.NextId();
  event.node = request->node();
  event.job = request->job();
  event.incarnation = Incarnation{request->incarnation()};
  event.rank = Rank{request->rank()};
  event.wanted = FromProto(request->wanted());
  event.view = request->view();
  auto call = std::make_unique<WaitingCall>(
      [this, id = event.request] { applier_.Submit(RestoreGivenUp{id}); });
  WaitingCall* raw = call.release();  // deletes itself in OnDone
  applier_.Submit(event, event.request, [raw, reply](const Reply* answer) {
    if (!raw->Claim()) return;
    if (answer == nullptr) return raw->Finish(Unknown());
    ToProto(answer->outcome, reply->mutable_outcome());
    if (answer->outcome.ok()) {
      ToProto(answer->version, reply->mutable_version());
      reply->set_tier(static_cast<uint32_t>(answer->tier));
      reply->set_world(answer->world);
    }
    raw->Finish(grpc::Status::OK);
  });
  return raw;
}

grpc::ServerUnaryReactor* CoordinatorService::GetStatus(grpc::CallbackServerContext* context,
                                                        const pb::GetStatusRequest* request,
                                                        pb::GetStatusReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  applier_.Ask([this, reactor, reply, job = request->job()](const State* state, Epoch epoch) {
    if (state == nullptr) return reactor->Finish(Unknown());
    FillStatus(*state, cluster_, epoch, job, reply);
    reactor->Finish(grpc::Status::OK);
  });
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorService::ListVersions(grpc::CallbackServerContext* context,
                                                           const pb::ListVersionsRequest* request,
                                                           pb::ListVersionsReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  applier_.Ask([reactor, reply, copy = *request](const State* state, Epoch) {
    if (state == nullptr) return reactor->Finish(Unknown());
    FillVersions(*state, copy, reply);
    reactor->Finish(grpc::Status::OK);
  });
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorService::PlanRestore(grpc::CallbackServerContext* context,
                                                          const pb::PlanRestoreRequest* request,
                                                          pb::PlanRestoreReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  applier_.Ask([reactor, reply, copy = *request](const State* state, Epoch) {
    if (state == nullptr) return reactor->Finish(Unknown());
    FillRestorePlan(*state, copy, reply);
    reactor->Finish(grpc::Status::OK);
  });
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorService::WhatIfLost(grpc::CallbackServerContext* context,
                                                         const pb::WhatIfLostRequest* request,
                                                         pb::WhatIfLostReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  applier_.Ask([reactor, reply, copy = *request](const State* state, Epoch) {
    if (state == nullptr) return reactor->Finish(Unknown());
    FillWithout(*state, copy, reply);
    reactor->Finish(grpc::Status::OK);
  });
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorService::Pin(grpc::CallbackServerContext* context,
                                                  const pb::PinRequest* request,
                                                  pb::PinReply* reply) {
  auto version = NamedVersion(request->version());
  if (!version) return Refuse(context, reply, version.error());
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const RequestId id = applier_.NextId();
  applier_.Submit(PinSet{id, request->job(), *version, request->pinned()}, id,
                  AnswerInto(reactor, reply, [](const Reply&) {}));
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorService::Retain(grpc::CallbackServerContext* context,
                                                     const pb::RetainRequest* request,
                                                     pb::RetainReply* reply) {
  Status status = ValidateName("job", request->job());
  if (status.ok() && request->keep_last() > kKeepLastMax) {
    status = InvalidArgumentError(
        fmt::format("{} versions are more than the {} that can be kept", request->keep_last(),
                    kKeepLastMax));
  }
  if (status.ok() && request->keep_last() == 0 && request->keep_every() != 0) {
    status = InvalidArgumentError("keep_every goes with a keep_last of 1 or more");
  }
  if (!status.ok()) return Refuse(context, reply, status);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const RequestId id = applier_.NextId();
  applier_.Submit(
      Event(RetentionSet{id, request->job(), request->keep_last(), request->keep_every()}), id,
      AnswerInto(reactor, reply, [](const Reply&) {}));
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorService::ForgetJob(grpc::CallbackServerContext* context,
                                                        const pb::ForgetJobRequest* request,
                                                        pb::ForgetJobReply* reply) {
  const Status status = ValidateName("job", request->job());
  if (!status.ok()) return Refuse(context, reply, status);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const RequestId id = applier_.NextId();
  applier_.Submit(Event(JobForgotten{id, request->job()}), id,
                  AnswerInto(reactor, reply, [reply](const Reply& answer) {
                    for (const std::string& node : answer.nodes) reply->add_away(node);
                  }));
  return reactor;
}

}  // namespace holdfast::coord
