#include "coordinator/server/service.h"

#include <fmt/format.h>

#include <atomic>

#include "base/endpoint.h"
#include "base/log.h"
#include "coordinator/api/caller.h"
#include "coordinator/api/convert.h"
#include "coordinator/api/run_convert.h"
#include "coordinator/server/agent_sink.h"
#include "coordinator/server/answers.h"
#include "coordinator/server/calls.h"
#include "coordinator/server/own_jobs.h"
#include "coordinator/server/requests.h"

namespace holdfast::coord {
namespace {
constexpr uint64_t kKeepLastMax = 1'000'000;

/// Who ends a call: the applier's answer or a cancellation. It outlives the call, because the
/// answer may come when a cancelled call is already deleted.
class EndOfCall {
 public:
  /// Returns true for exactly one caller. Only this one may touch the call and its reply.
  bool Claim() { return !claimed_.exchange(true); }

 private:
  std::atomic<bool> claimed_{false};
};

/// A call that ends when the applier answers, or when its caller cancels.
class WaitingCall : public grpc::ServerUnaryReactor {
 public:
  WaitingCall(std::shared_ptr<EndOfCall> end, std::function<void()> on_cancel)
      : end_(std::move(end)), on_cancel_(std::move(on_cancel)) {}
  void OnCancel() override {
    if (!end_->Claim()) return;
    on_cancel_();
    Finish(grpc::Status::CANCELLED);
  }
  void OnDone() override { std::unique_ptr<WaitingCall> last(this); }

 private:
  const std::shared_ptr<EndOfCall> end_;
  const std::function<void()> on_cancel_;
};
}  // namespace

std::optional<uid_t> CoordinatorService::OnlyJobsOf(grpc::CallbackServerContext& context) const {
  constexpr RoleSet kAllJobs = Role::kViewer | Role::kOperator | Role::kRunner;
  if (callers_ == nullptr) return std::nullopt;
  const Caller caller = callers_->Identify(context.c_call());
  if ((caller.roles & kAllJobs) != 0) return std::nullopt;
  return caller.uid.value_or(~uid_t{0});
}

Status CoordinatorService::CheckNode(const grpc::CallbackServerContext& context,
                                     const std::string& node) {
  return relays_ == nullptr ? CheckOwnNode(context, node) : relays_->CheckNode(context, node);
}

grpc::ServerWriteReactor<pb::Directive>* CoordinatorService::Attach(
    grpc::CallbackServerContext* context, const pb::AttachRequest* request) {
  std::shared_ptr<DirectiveStream> stream;
  Status status = CheckOwnNode(*context, request->node());
  if (status.ok()) {
    status = agents_.Attach(*request, "", [&](AttachId attach) {
      stream = DirectiveStream::Make(
          [this, node = request->node(), attach] { agents_.Detach(node, attach); });
      return std::make_shared<AgentSink>(stream);
    });
  }
  if (status.ok()) return stream.get();
  Log(LogLevel::kWarn, "AttachRefused",
      {Kv("node", request->node()), Kv("why", status.ToString())});
  auto refused = DirectiveStream::Make([] {});
  refused->Close(status);
  return refused.get();
}

grpc::ServerUnaryReactor* CoordinatorService::Report(grpc::CallbackServerContext* context,
                                                     const pb::ReportRequest* request,
                                                     pb::ReportReply* reply) {
  const Status own = CheckOwnNode(*context, request->node());
  if (!own.ok()) return ReplyOutcome(context, reply, own);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  agents_.Report(*request, {}, [this, reactor, reply](const pb::ReportReply* answer) {
    if (answer == nullptr) return reactor->Finish(StateUnknown(applier_));
    *reply = *answer;
    reactor->Finish(grpc::Status::OK);
  });
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorService::Join(grpc::CallbackServerContext* context,
                                                   const pb::JoinRequest* request,
                                                   pb::JoinReply* reply) {
  auto event = ReadJoin(*request);
  const Status own = CheckNode(*context, request->node());
  if (!own.ok()) return ReplyOutcome(context, reply, own);
  if (!event) return ReplyOutcome(context, reply, event.error());
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const RequestId id = applier_.NextId();
  event->request = id;
  const auto fill = [reply](const Reply& r) { reply->set_incarnation(r.incarnation.value); };
  applier_.Submit(*std::move(event), id, AnswerInto(applier_, reactor, reply, fill));
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorService::DecideRestore(grpc::CallbackServerContext* context,
                                                            const pb::DecideRestoreRequest* request,
                                                            pb::DecideRestoreReply* reply) {
  auto event = ReadRestore(*request);
  if (!event) return ReplyOutcome(context, reply, event.error());
  const Status own = CheckNode(*context, request->node());
  if (!own.ok()) return ReplyOutcome(context, reply, own);
  const RequestId id = applier_.NextId();
  event->request = id;
  auto end = std::make_shared<EndOfCall>();
  const RestoreAbandoned abandoned{id, event->job, event->rank};
  auto call = std::make_unique<WaitingCall>(end, [this, abandoned] { applier_.Submit(abandoned); });
  WaitingCall* raw = call.release();  // deletes itself in OnDone
  applier_.Submit(*std::move(event), id, [this, end, raw, reply](const Reply* answer) {
    if (!end->Claim()) return;
    if (answer == nullptr) return raw->Finish(StateUnknown(applier_));
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
  return AnswerQuery(applier_, context,
                     [this, reply, job = request->job(), only = OnlyJobsOf(*context)](
                         const State& state, Epoch epoch) {
                       FillStatus(state, cluster_, epoch, job, reply);
                       if (only) LeaveOwnJobs(*only, reply);
                       reply->set_stopped_why(applier_.stopped_why());
                       reply->set_page_url(page_url_);
                       reply->set_wall_nanos(clock_.WallNanos());
                     });
}

grpc::ServerUnaryReactor* CoordinatorService::ListVersions(grpc::CallbackServerContext* context,
                                                           const pb::ListVersionsRequest* request,
                                                           pb::ListVersionsReply* reply) {
  return AnswerQuery(applier_, context, [reply, copy = *request](const State& state, Epoch) {
    FillVersions(state, copy, reply);
  });
}

grpc::ServerUnaryReactor* CoordinatorService::PlanRestore(grpc::CallbackServerContext* context,
                                                          const pb::PlanRestoreRequest* request,
                                                          pb::PlanRestoreReply* reply) {
  return AnswerQuery(applier_, context, [reply, copy = *request](const State& state, Epoch) {
    FillRestorePlan(state, copy, reply);
  });
}

grpc::ServerUnaryReactor* CoordinatorService::WhatIfLost(grpc::CallbackServerContext* context,
                                                         const pb::WhatIfLostRequest* request,
                                                         pb::WhatIfLostReply* reply) {
  return AnswerQuery(
      applier_, context,
      [this, reply, copy = *request, only = OnlyJobsOf(*context)](const State& state, Epoch) {
        FillImpact(state, copy, reply);
        if (only) LeaveOwnJobs(*only, applier_.job_owners(), reply);
      });
}

grpc::ServerUnaryReactor* CoordinatorService::Adopt(grpc::CallbackServerContext* context,
                                                    const pb::AdoptRequest* request,
                                                    pb::AdoptReply* reply) {
  Status status = request->job().empty() ? Status::Ok() : ValidateName("job", request->job());
  if (!status.ok()) return ReplyOutcome(context, reply, status);
  const auto event_of = [&](RequestId id) {
    AdoptRequested event{id, request->job(), LifeId{request->life()}, request->dry_run()};
    if (request->has_owner()) event.owner = request->owner();
    return event;
  };
  const auto fill = [reply](const Reply& r) { FillAdopted(r.adopted, reply); };
  if (!request->dry_run()) {
    return recorded_.CarryOut(context, "Adopt", *request, reply, event_of, fill);
  }
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const RequestId id = applier_.NextId();
  applier_.Submit(event_of(id), id, AnswerInto(applier_, reactor, reply, fill));
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorService::Pin(grpc::CallbackServerContext* context,
                                                  const pb::PinRequest* request,
                                                  pb::PinReply* reply) {
  const std::optional<VersionId> version = AnyVersion(request->version());
  if (!version && !request->pinned()) {
    return ReplyOutcome(context, reply, InvalidArgumentError("no version to unpin: name it"));
  }
  return recorded_.CarryOut(
      context, "Pin", *request, reply,
      [&](RequestId id) {
        return PinSet{id, request->job(), version, request->pinned()};
      },
      [reply](const Reply& r) {
        if (r.outcome.ok()) ToProto(r.version, reply->mutable_version());
      });
}

grpc::ServerUnaryReactor* CoordinatorService::RecordVerification(
    grpc::CallbackServerContext* context, const pb::RecordVerificationRequest* request,
    pb::RecordVerificationReply* reply) {
  const pb::Verification& found = request->verification();
  const Verification verification{0,
                                  found.deep(),
                                  found.ok(),
                                  found.damaged(),
                                  found.missing(),
                                  found.unchecked(),
                                  found.left_out()};
  Status status = ValidateName("job", request->job());
  if (status.ok() && verification == Verification{.deep = found.deep()}) {
    status = InvalidArgumentError("the verification has no replica: give the numbers of replicas");
  }
  if (!status.ok()) return ReplyOutcome(context, reply, status);
  return recorded_.CarryOut(context, "RecordVerification", *request, reply, [&](RequestId id) {
    return VersionVerified{id, request->job(), FromProto(request->version()), verification};
  });
}

grpc::ServerUnaryReactor* CoordinatorService::Retain(grpc::CallbackServerContext* context,
                                                     const pb::RetainRequest* request,
                                                     pb::RetainReply* reply) {
  Status status = ValidateName("job", request->job());
  if (status.ok() && request->keep_last() > kKeepLastMax) {
    status = InvalidArgumentError(
        fmt::format("keep_last is {}; the limit is {}", request->keep_last(), kKeepLastMax));
  }
  if (status.ok() && request->keep_last() == 0 && request->keep_every() != 0) {
    status = InvalidArgumentError("keep_every needs a keep_last of 1 or more");
  }
  if (!status.ok()) return ReplyOutcome(context, reply, status);
  return recorded_.CarryOut(context, "Retain", *request, reply, [&](RequestId id) {
    return RetentionSet{id, request->job(), request->keep_last(), request->keep_every()};
  });
}

grpc::ServerUnaryReactor* CoordinatorService::ForgetJob(grpc::CallbackServerContext* context,
                                                        const pb::ForgetJobRequest* request,
                                                        pb::ForgetJobReply* reply) {
  const Status status = ValidateName("job", request->job());
  if (!status.ok()) return ReplyOutcome(context, reply, status);
  return recorded_.CarryOut(
      context, "ForgetJob", *request, reply,
      [&](RequestId id) {
        return JobForgotten{id, request->job()};
      },
      [reply](const Reply& answer) {
        for (const std::string& node : answer.nodes) reply->add_away(node);
      });
}

}  // namespace holdfast::coord
