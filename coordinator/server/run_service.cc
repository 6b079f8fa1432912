#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "coordinator/api/caller.h"
#include "coordinator/api/convert.h"
#include "coordinator/api/run_convert.h"
#include "coordinator/contract/text.h"
#include "coordinator/server/answers.h"
#include "coordinator/server/calls.h"
#include "coordinator/server/own_jobs.h"
#include "coordinator/server/run_answers.h"
#include "coordinator/server/run_user.h"
#include "coordinator/server/service.h"

// The calls about runs, incidents, quarantined and drained nodes, and telemetry.

namespace holdfast::coord {
namespace {
constexpr int64_t kStopDeadlineMsMax = 24LL * 3600 * 1000;
constexpr size_t kWhyBytesMax = 1024;
}  // namespace

grpc::ServerUnaryReactor* CoordinatorService::Observe(grpc::CallbackServerContext* context,
                                                      const pb::ObserveRequest* request,
                                                      pb::ObserveReply* reply) {
  const Status own = CheckOwnNode(*context, request->node());
  if (!own.ok()) return ReplyOutcome(context, reply, own);
  *reply = agents_.Observe(*request);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorService::StartRun(grpc::CallbackServerContext* context,
                                                       const pb::StartRunRequest* request,
                                                       pb::StartRunReply* reply) {
  auto spec = FromProto(request->spec());
  if (!spec) return ReplyOutcome(context, reply, spec.error());
  if (callers_ != nullptr) {
    const Caller caller = callers_->Identify(context->c_call());
    auto user = RunUserOf(caller, request->spec().run_as(), run_as_users_);
    if (!user) return ReplyOutcome(context, reply, user.error());
    spec->uid = *user;
  }
  return recorded_.CarryOut(context, "StartRun", *request, reply, [&](RequestId id) {
    return RunRequested{id, *std::move(spec)};
  });
}

grpc::ServerUnaryReactor* CoordinatorService::StopRun(grpc::CallbackServerContext* context,
                                                      const pb::StopRunRequest* request,
                                                      pb::StopRunReply* reply) {
  Status status = ValidateName("job", request->job());
  if (status.ok() && (request->deadline_ms() < 0 || request->deadline_ms() > kStopDeadlineMsMax)) {
    status = InvalidArgumentError("the deadline must be from 0 to one day");
  }
  if (!status.ok()) return ReplyOutcome(context, reply, status);
  if (callers_ != nullptr) {
    status = CheckMayStop(callers_->Identify(context->c_call()), request->job(),
                          applier_.job_owners().Find(request->job()), run_as_users_);
    if (!status.ok()) return ReplyOutcome(context, reply, status);
  }
  return recorded_.CarryOut(context, "StopRun", *request, reply, [&](RequestId id) {
    return StopRequested{id, request->job(), request->deadline_ms()};
  });
}

grpc::ServerUnaryReactor* CoordinatorService::Quarantine(grpc::CallbackServerContext* context,
                                                         const pb::QuarantineRequest* request,
                                                         pb::QuarantineReply* reply) {
  Status status = ValidateName("node", request->node());
  if (!status.ok()) return ReplyOutcome(context, reply, status);
  const std::string why = CutText(request->why(), kWhyBytesMax);
  const bool test = !request->set() && !request->untested();
  return recorded_.CarryOut(context, "Quarantine", *request, reply, [&](RequestId id) {
    return QuarantineRequested{id, request->node(), request->set(), why, test};
  });
}

grpc::ServerUnaryReactor* CoordinatorService::Drain(grpc::CallbackServerContext* context,
                                                    const pb::DrainRequest* request,
                                                    pb::DrainReply* reply) {
  Status status = ValidateName("node", request->node());
  if (!status.ok()) return ReplyOutcome(context, reply, status);
  const std::string why = CutText(request->why(), kWhyBytesMax);
  return recorded_.CarryOut(context, "Drain", *request, reply, [&](RequestId id) {
    return DrainSet{id,  request->node(),      request->set(),
                    why, request->move_runs(), request->remove()};
  });
}

grpc::ServerUnaryReactor* CoordinatorService::GetDrain(grpc::CallbackServerContext* context,
                                                       const pb::GetDrainRequest* request,
                                                       pb::GetDrainReply* reply) {
  return AnswerQuery(applier_, context, [reply, node = request->node()](const State& state, Epoch) {
    FillDrain(state, node, reply);
  });
}

grpc::ServerUnaryReactor* CoordinatorService::GetRuns(grpc::CallbackServerContext* context,
                                                      const pb::GetRunsRequest* request,
                                                      pb::GetRunsReply* reply) {
  return AnswerQuery(applier_, context,
                     [this, reply, job = request->job(),
                      only = OnlyJobsOf(*context)](const Supervisor& supervisor) {
                       FillRuns(supervisor, job, reply);
                       if (only) LeaveOwnJobs(*only, applier_.job_owners(), reply);
                     });
}

grpc::ServerUnaryReactor* CoordinatorService::ListIncidents(grpc::CallbackServerContext* context,
                                                            const pb::ListIncidentsRequest* request,
                                                            pb::ListIncidentsReply* reply) {
  return AnswerQuery(
      applier_, context,
      [this, reply, copy = *request, only = OnlyJobsOf(*context)](const Supervisor& supervisor) {
        FillIncidents(supervisor, copy, reply);
        if (only) LeaveOwnJobs(*only, applier_.job_owners(), reply);
      });
}

grpc::ServerUnaryReactor* CoordinatorService::AcknowledgeIncident(
    grpc::CallbackServerContext* context, const pb::AcknowledgeIncidentRequest* request,
    pb::AcknowledgeIncidentReply* reply) {
  const std::string why = CutText(request->why(), kWhyBytesMax);
  return recorded_.CarryOut(context, "AcknowledgeIncident", *request, reply, [&](RequestId id) {
    return AcknowledgeRequested{id, request->id(), why};
  });
}

}  // namespace holdfast::coord
