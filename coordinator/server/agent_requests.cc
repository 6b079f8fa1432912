#include "coordinator/server/agent_requests.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "base/endpoint.h"
#include "base/log.h"
#include "coordinator/api/convert.h"
#include "coordinator/contract/pace.h"
#include "coordinator/server/requests.h"

namespace holdfast::coord {
namespace {
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
  for (const pb::Digest& digest : request.digests()) {
    if (std::count(event.jobs.begin(), event.jobs.end(), digest.job()) != 0) continue;
    event.jobs.push_back(digest.job());
  }
  return event;
}
}  // namespace

Status AgentRequests::Attach(const pb::AttachRequest& request, const std::string& relay,
                             const MakeSink& sink) {
  auto event = ReadAttach(request, cluster_);
  if (!event) return event.error();
  event->attach = applier_.NextId();
  Log(LogLevel::kInfo, "NodeAttaching",
      {Kv("node", event->node), Kv("agent_start", event->agent_start),
       Kv("replicas", event->replicas.size()), Kv("data_address", event->data_address),
       Kv("relay", relay)});
  auto made = sink(event->attach);
  applier_.Attach(*std::move(event), std::move(made));
  return Status::Ok();
}

void AgentRequests::Detach(const std::string& node, AttachId attach) {
  applier_.Submit(NodeDetached{node, attach});
}

void AgentRequests::Report(const pb::ReportRequest& request, Relayed relayed, ReportDone done) {
  auto event = ReadReport(request);
  if (!event) {
    pb::ReportReply refused;
    ToProto(event.error(), refused.mutable_outcome());
    return done(&refused);
  }
  if (const auto due = applier_.self_tests().Find(request.node())) {
    auto tested = SelfTestedOf(request, *due);
    if (tested) applier_.Submit(RunEvent(*std::move(tested)));
  }
  event->attach = relayed.attach;
  std::move(relayed.replicas.begin(), relayed.replicas.end(), std::back_inserter(event->replicas));
  const RequestId id = applier_.NextId();
  event->request = id;
  applier_.Submit(*std::move(event), id,
                  [this, node = request.node(), done = std::move(done)](const Reply* answer) {
                    if (answer == nullptr) return done(nullptr);
                    pb::ReportReply reply;
                    ToProto(answer->outcome, reply.mutable_outcome());
                    reply.set_wall_nanos(clock_.WallNanos());
                    reply.set_self_test(applier_.self_tests().Find(node).value_or(0));
                    reply.set_pause_ms(static_cast<uint32_t>(applier_.heartbeat_pause().count()));
                    done(&reply);
                  });
}

pb::ObserveReply AgentRequests::Observe(const pb::ObserveRequest& request) {
  pb::ObserveReply reply;
  Status status = ValidateName("node", request.node());
  for (const pb::Digest& digest : request.digests()) {
    Status taken = watcher_.Observe(request.node(), request.agent_start(), digest);
    if (status.ok()) status = taken;
    if (auto sample = watcher_.SamplesFor(request.node(), digest.job())) {
      *reply.add_samples() = *std::move(sample);
    }
  }
  reply.set_pause_ms(static_cast<uint32_t>(TelemetryPause(applier_.attendance().agents()).count()));
  // GPU errors name the jobs of the digests, so they count only if the digests are valid.
  if (!applier_.attendance().IsAttached(request.node(), request.agent_start())) {
    ToProto(FencedError("the agent is not attached"), reply.mutable_outcome());
    return reply;
  }
  for (int i = 0; status.ok() && i < std::min(request.gpu_errors_size(), kGpuErrorsMax); ++i) {
    auto event = GpuFailedOf(request, request.gpu_errors(i));
    if (event) applier_.Submit(RunEvent(*std::move(event)));
  }
  ToProto(status, reply.mutable_outcome());
  return reply;
}

}  // namespace holdfast::coord
