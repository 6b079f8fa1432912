#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "coordinator/api/convert.h"
#include "coordinator/api/run_convert.h"
#include "coordinator/hand/hand.h"
#include "coordinator/server/calls.h"
#include "coordinator/server/run_answers.h"
#include "coordinator/server/service.h"

// The calls about runs, incidents and the quarantine.

namespace holdfast::coord {
namespace {
constexpr int64_t kStopDeadlineMsMax = 24LL * 3600 * 1000;
constexpr size_t kWhyBytesMax = 1024;
constexpr int64_t kDownMsMax = 3'600'000;
constexpr int kGpuErrorsMax = 64;  // of one message
constexpr uint32_t kXidMax = 0xFFFF;
constexpr size_t kBusIdBytesMax = 32;

/// Nothing for what cannot be.
std::optional<GpuFailed> GpuFailedOf(const pb::ObserveRequest& request,
                                     const pb::ObservedGpuError& told) {
  const std::string& bus_id = told.bus_id();
  if (told.number() == 0 || told.xid() == 0 || told.xid() > kXidMax ||
      bus_id.size() > kBusIdBytesMax ||
      bus_id.find_first_not_of("0123456789abcdefABCDEF:.") != std::string::npos) {
    return std::nullopt;
  }
  GpuFailed event;
  event.node = request.node();
  event.agent_start = request.agent_start();
  event.number = told.number();
  event.device = told.device();
  event.bus_id = bus_id;
  event.xid = told.xid();
  event.ago_ms = static_cast<int64_t>(told.age_ns() / 1'000'000);
  for (const pb::Digest& digest : request.digests()) event.jobs.push_back(digest.job());
  return event;
}
}  // namespace

grpc::ServerUnaryReactor* CoordinatorService::Observe(grpc::CallbackServerContext* context,
                                                      const pb::ObserveRequest* request,
                                                      pb::ObserveReply* reply) {
  Status status = ValidateName("node", request->node());
  for (const pb::Digest& digest : request->digests()) {
    Status taken = watcher_.Observe(request->node(), request->agent_start(), digest);
    if (status.ok()) status = taken;
    const uint32_t operations = watcher_.SamplesFor(request->node(), digest.job());
    if (operations == 0) continue;
    pb::SampleRequest* sample = reply->add_samples();
    sample->set_job(digest.job());
    sample->set_operations(operations);
  }
  // They name jobs that the digests were checked for.
  if (!applier_.attendance().IsAttached(request->node(), request->agent_start())) {
    return Refuse(context, reply, FencedError("the agent is not attached"));
  }
  for (int i = 0; status.ok() && i < std::min(request->gpu_errors_size(), kGpuErrorsMax); ++i) {
    auto event = GpuFailedOf(*request, request->gpu_errors(i));
    if (event) applier_.Submit(RunEvent(*std::move(event)));
  }
  return Refuse(context, reply, status);
}

grpc::ServerUnaryReactor* CoordinatorService::StartRun(grpc::CallbackServerContext* context,
                                                       const pb::StartRunRequest* request,
                                                       pb::StartRunReply* reply) {
  auto spec = FromProto(request->spec());
  if (!spec) return Refuse(context, reply, spec.error());
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const RequestId id = applier_.NextId();
  applier_.Submit(RunEvent(RunWanted{id, *std::move(spec)}), id,
                  AnswerInto(reactor, reply, [](const Reply&) {}));
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorService::StopRun(grpc::CallbackServerContext* context,
                                                      const pb::StopRunRequest* request,
                                                      pb::StopRunReply* reply) {
  Status status = ValidateName("job", request->job());
  if (status.ok() && (request->deadline_ms() < 0 || request->deadline_ms() > kStopDeadlineMsMax)) {
    status = InvalidArgumentError("the deadline goes from 0 to a day");
  }
  if (!status.ok()) return Refuse(context, reply, status);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const RequestId id = applier_.NextId();
  applier_.Submit(RunEvent(StopWanted{id, request->job(), request->deadline_ms()}), id,
                  AnswerInto(reactor, reply, [](const Reply&) {}));
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorService::Quarantine(grpc::CallbackServerContext* context,
                                                         const pb::QuarantineRequest* request,
                                                         pb::QuarantineReply* reply) {
  Status status = ValidateName("node", request->node());
  if (!status.ok()) return Refuse(context, reply, status);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const RequestId id = applier_.NextId();
  const std::string why = CutText(request->why(), kWhyBytesMax);
  applier_.Submit(RunEvent(QuarantineWanted{id, request->node(), request->set(), why}), id,
                  AnswerInto(reactor, reply, [](const Reply&) {}));
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorService::GetRuns(grpc::CallbackServerContext* context,
                                                      const pb::GetRunsRequest* request,
                                                      pb::GetRunsReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  applier_.Ask([reactor, reply, job = request->job()](const Supervisor* supervisor) {
    if (supervisor == nullptr) return reactor->Finish(Unknown());
    FillRuns(*supervisor, job, reply);
    reactor->Finish(grpc::Status::OK);
  });
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorService::ListIncidents(grpc::CallbackServerContext* context,
                                                            const pb::ListIncidentsRequest* request,
                                                            pb::ListIncidentsReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  applier_.Ask([reactor, reply, copy = *request](const Supervisor* supervisor) {
    if (supervisor == nullptr) return reactor->Finish(Unknown());
    FillIncidents(*supervisor, copy, reply);
    reactor->Finish(grpc::Status::OK);
  });
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorService::AcknowledgeIncident(
    grpc::CallbackServerContext* context, const pb::AcknowledgeIncidentRequest* request,
    pb::AcknowledgeIncidentReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const RequestId id = applier_.NextId();
  const std::string why = request->why().substr(0, kWhyBytesMax);
  applier_.Submit(RunEvent(AcknowledgeWanted{id, request->id(), why}), id,
                  AnswerInto(reactor, reply, [](const Reply&) {}));
  return reactor;
}

/// A process of its own does both; an own thread could not outlive the kill.
grpc::ServerUnaryReactor* CoordinatorService::KillCoordinator(
    grpc::CallbackServerContext* context, const pb::KillCoordinatorRequest* request,
    pb::KillCoordinatorReply* reply) {
  if (drills_folder_.empty()) {
    return Refuse(context, reply,
                  FailedPreconditionError("drills are not enabled on the coordinator: set "
                                          "drills.enabled = true in its configuration and start "
                                          "it again"));
  }
  const auto possible = [](int64_t ms) { return ms >= 0 && ms <= kDownMsMax; };
  if (!possible(request->start_in_ms()) || !possible(request->down_ms())) {
    return Refuse(context, reply, InvalidArgumentError("a coordinator stays away an hour at most"));
  }
  if (request->dry_run()) return Refuse(context, reply, Status::Ok());
  HandOrder order;
  order.record = drills_folder_ + "/kill-coordinator";
  order.process = NameProcess(::getpid());
  order.start_in_ms = request->start_in_ms();
  order.duration_ms = request->down_ms();
  auto hand = StartHand(order);
  return Refuse(context, reply, hand ? Status::Ok() : hand.error());
}

}  // namespace holdfast::coord
