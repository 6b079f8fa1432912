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
constexpr int kGpuErrorsMax = 64;  // per message
constexpr uint32_t kXidMax = 0xFFFF;
constexpr size_t kBusIdBytesMax = 32;

/// Converts a GPU error; nullopt if it is implausible.
std::optional<GpuFailed> GpuFailedOf(const pb::ObserveRequest& request,
                                     const pb::ObservedGpuError& observed) {
  const std::string& bus_id = observed.bus_id();
  if (observed.number() == 0 || observed.xid() == 0 || observed.xid() > kXidMax ||
      bus_id.size() > kBusIdBytesMax ||
      bus_id.find_first_not_of("0123456789abcdefABCDEF:.") != std::string::npos) {
    return std::nullopt;
  }
  GpuFailed event;
  event.node = request.node();
  event.agent_start = request.agent_start();
  event.number = observed.number();
  event.device = observed.device();
  event.bus_id = bus_id;
  event.xid = observed.xid();
  event.ago_ms = static_cast<int64_t>(observed.age_ns() / 1'000'000);
  for (const pb::Digest& digest : request.digests()) event.jobs.push_back(digest.job());
  return event;
}
}  // namespace

grpc::ServerUnaryReactor* CoordinatorService::Observe(grpc::CallbackServerContext* context,
                                                      const pb::ObserveRequest* request,
                                                      pb::ObserveReply* reply) {
  Status status = ValidateName("node", request->node());
  const Status own = CheckOwnNode(*context, request->node());
  if (!own.ok()) return ReplyOutcome(context, reply, own);
  for (const pb::Digest& digest : request->digests()) {
    Status taken = watcher_.Observe(request->node(), request->agent_start(), digest);
    if (status.ok()) status = taken;
    const uint32_t operations = watcher_.SamplesFor(request->node(), digest.job());
    if (operations == 0) continue;
    pb::SampleRequest* sample = reply->add_samples();
    sample->set_job(digest.job());
    sample->set_operations(operations);
  }
  // GPU errors name the jobs of the digests, so they count only if the digests are valid.
  if (!applier_.attendance().IsAttached(request->node(), request->agent_start())) {
    return ReplyOutcome(context, reply, FencedError("the agent is not attached"));
  }
  for (int i = 0; status.ok() && i < std::min(request->gpu_errors_size(), kGpuErrorsMax); ++i) {
    auto event = GpuFailedOf(*request, request->gpu_errors(i));
    if (event) applier_.Submit(RunEvent(*std::move(event)));
  }
  return ReplyOutcome(context, reply, status);
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
  const auto begun = Begin(*context, "StartRun", *request);
  if (!begun) return ReplyOutcome(context, reply, begun.error());
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const RequestId id = applier_.NextId();
  applier_.Submit(RunEvent(RunRequested{id, *std::move(spec)}), id,
                  Recorded(*begun, "StartRun", AnswerInto(reactor, reply, [](const Reply&) {})));
  return reactor;
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
  const auto begun = Begin(*context, "StopRun", *request);
  if (!begun) return ReplyOutcome(context, reply, begun.error());
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const RequestId id = applier_.NextId();
  applier_.Submit(RunEvent(StopRequested{id, request->job(), request->deadline_ms()}), id,
                  Recorded(*begun, "StopRun", AnswerInto(reactor, reply, [](const Reply&) {})));
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorService::Quarantine(grpc::CallbackServerContext* context,
                                                         const pb::QuarantineRequest* request,
                                                         pb::QuarantineReply* reply) {
  Status status = ValidateName("node", request->node());
  if (!status.ok()) return ReplyOutcome(context, reply, status);
  const auto begun = Begin(*context, "Quarantine", *request);
  if (!begun) return ReplyOutcome(context, reply, begun.error());
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const RequestId id = applier_.NextId();
  const std::string why = CutText(request->why(), kWhyBytesMax);
  const bool test = !request->set() && !request->untested();
  applier_.Submit(RunEvent(QuarantineRequested{id, request->node(), request->set(), why, test}), id,
                  Recorded(*begun, "Quarantine", AnswerInto(reactor, reply, [](const Reply&) {})));
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorService::Drain(grpc::CallbackServerContext* context,
                                                    const pb::DrainRequest* request,
                                                    pb::DrainReply* reply) {
  Status status = ValidateName("node", request->node());
  if (!status.ok()) return ReplyOutcome(context, reply, status);
  const auto begun = Begin(*context, "Drain", *request);
  if (!begun) return ReplyOutcome(context, reply, begun.error());
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const RequestId id = applier_.NextId();
  const std::string why = CutText(request->why(), kWhyBytesMax);
  applier_.Submit(Event(DrainSet{id, request->node(), request->set(), why, request->move_runs()}),
                  id, Recorded(*begun, "Drain", AnswerInto(reactor, reply, [](const Reply&) {})));
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorService::GetDrain(grpc::CallbackServerContext* context,
                                                       const pb::GetDrainRequest* request,
                                                       pb::GetDrainReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const bool accepted =
      applier_.Query([reactor, reply, node = request->node()](const State* state, Epoch) {
        if (state == nullptr) return reactor->Finish(StateUnknown());
        FillDrain(*state, node, reply);
        reactor->Finish(grpc::Status::OK);
      });
  if (!accepted) FinishTooManyReads(context, reactor);
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorService::GetRuns(grpc::CallbackServerContext* context,
                                                      const pb::GetRunsRequest* request,
                                                      pb::GetRunsReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const bool accepted = applier_.Query([this, reactor, reply, job = request->job(),
                                        only = OnlyJobsOf(*context)](const Supervisor* supervisor) {
    if (supervisor == nullptr) return reactor->Finish(StateUnknown());
    FillRuns(*supervisor, job, reply);
    if (only) LeaveOwnJobs(*only, applier_.job_owners(), reply);
    reactor->Finish(grpc::Status::OK);
  });
  if (!accepted) FinishTooManyReads(context, reactor);
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorService::ListIncidents(grpc::CallbackServerContext* context,
                                                            const pb::ListIncidentsRequest* request,
                                                            pb::ListIncidentsReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const bool accepted = applier_.Query([this, reactor, reply, copy = *request,
                                        only = OnlyJobsOf(*context)](const Supervisor* supervisor) {
    if (supervisor == nullptr) return reactor->Finish(StateUnknown());
    FillIncidents(*supervisor, copy, reply);
    if (only) LeaveOwnJobs(*only, applier_.job_owners(), reply);
    reactor->Finish(grpc::Status::OK);
  });
  if (!accepted) FinishTooManyReads(context, reactor);
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorService::AcknowledgeIncident(
    grpc::CallbackServerContext* context, const pb::AcknowledgeIncidentRequest* request,
    pb::AcknowledgeIncidentReply* reply) {
  const auto begun = Begin(*context, "AcknowledgeIncident", *request);
  if (!begun) return ReplyOutcome(context, reply, begun.error());
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const RequestId id = applier_.NextId();
  const std::string why = CutText(request->why(), kWhyBytesMax);
  applier_.Submit(
      RunEvent(AcknowledgeRequested{id, request->id(), why}), id,
      Recorded(*begun, "AcknowledgeIncident", AnswerInto(reactor, reply, [](const Reply&) {})));
  return reactor;
}

}  // namespace holdfast::coord
