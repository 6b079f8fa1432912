#include "faults/drill/injection.h"

#include <fmt/format.h>

#include "base/endpoint.h"
#include "base/random.h"
#include "cli/cluster/rpc.h"
#include "cli/core/interrupt.h"
#include "cli/core/text.h"
#include "faults/api/faults.grpc.pb.h"
#include "faults/api/protocol.h"

namespace holdfast::faults {
using cli::FromTransport;
using cli::Join;
using cli::OnInterrupt;
using cli::Printable;
using cli::SilenceGuard;
namespace {
// Faults of several machines begin at the same time, after the last one has got its request.
constexpr int64_t kSimultaneousStartMs = 400;
// An answer arrives before the process that may carry it is killed.
constexpr int64_t kReplyDelayMs = 100;
constexpr const char* kHint = "is holdfast-fault running there?";

/// Returns the address at which the injector next to a server listens by default.
std::string DefaultOf(const std::string& text) {
  const auto endpoint = ParseEndpoint(text);
  if (!endpoint) return "";
  Endpoint injector = *endpoint;
  injector.port = kInjectorPort;
  const size_t slash = injector.path.rfind('/');
  if (slash != std::string::npos)
    injector.path = injector.path.substr(0, slash + 1) + kInjectorSocket;
  return injector.ToString();
}
}  // namespace

int64_t StartInMs(DrillKind kind) {
  if (kind == DrillKind::kPowerLoss || kind == DrillKind::kPartition ||
      kind == DrillKind::kLoseStore) {
    return kSimultaneousStartMs;
  }
  const bool server = kind == DrillKind::kKillAgent || kind == DrillKind::kKillNode ||
                      kind == DrillKind::kKillCoordinator;
  return server ? kReplyDelayMs : 0;
}

// ---- addresses ----

Result<InjectorAddresses> InjectorAddresses::Parse(const std::vector<std::string>& nodes,
                                                   const std::string& coordinator) {
  InjectorAddresses addresses;
  for (const std::string& text : nodes) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos) {
      return Fail(InvalidArgumentError(
          fmt::format("'{}' is not NODE=ADDRESS: write e.g. n1=10.0.0.1:7079", Printable(text))));
    }
    const std::string node = text.substr(0, equals);
    HOLDFAST_RETURN_IF_ERROR(ValidateName("node", node));
    HOLDFAST_ASSIGN_OR_RETURN(const Endpoint endpoint, ParseEndpoint(text.substr(equals + 1)));
    if (!addresses.nodes_.emplace(node, endpoint.ToString()).second) {
      return Fail(InvalidArgumentError("node '" + node + "' is given twice"));
    }
  }
  if (coordinator.empty()) return addresses;
  HOLDFAST_ASSIGN_OR_RETURN(const Endpoint endpoint, ParseEndpoint(coordinator));
  addresses.coordinator_ = endpoint.ToString();
  return addresses;
}

std::string InjectorAddresses::OfNode(const std::string& node,
                                      const std::string& data_address) const {
  const auto given = nodes_.find(node);
  return given == nodes_.end() ? DefaultOf(data_address) : given->second;
}

std::string InjectorAddresses::OfCoordinator(const std::string& endpoint) const {
  return coordinator_.empty() ? DefaultOf(endpoint) : coordinator_;
}

// ---- calls ----

std::vector<Injection::Machine> Injection::MachinesOf(const DrillPlan& plan) const {
  std::vector<Machine> machines;
  if (plan.coordinator) {
    machines.push_back(
        {"the coordinator's machine", "", addresses_.OfCoordinator(options_.endpoint)});
  }
  for (const std::string& node : plan.nodes) {
    const auto agent = plan.agents.find(node);
    const std::string data_address = agent == plan.agents.end() ? "" : agent->second;
    machines.push_back({"node " + Printable(node), node, addresses_.OfNode(node, data_address)});
  }
  return machines;
}

InjectRequest Injection::RequestOf(const DrillPlan& plan, const Machine& machine,
                                   const std::string& drill) const {
  InjectRequest request;
  request.set_protocol(kProtocol);
  request.set_cluster(plan.cluster);
  request.set_node(machine.node);
  request.set_sent_wall_nanos(clock_.WallNanos());
  request.set_drill(drill);
  DrillKind part = plan.kind;
  if (plan.kind == DrillKind::kPowerLoss) {
    part = machine.node.empty() ? DrillKind::kKillCoordinator : DrillKind::kKillNode;
  }
  request.set_kind(TraitsOf(part).name);
  request.set_job(plan.job);
  request.set_rank(plan.rank.value_or(0));
  const VersionId version = plan.version.value_or(VersionId{});
  request.set_incarnation(version.incarnation.value);
  request.set_step(version.step.value);
  request.set_seed(plan.seed);
  request.set_start_in_ms(StartInMs(plan.kind));
  request.set_duration_ms(plan.duration_ms);
  for (const std::string& address : plan.others) request.add_addresses(address);
  request.set_bytes_per_s(plan.bytes_per_s);
  request.set_peer(plan.peer);
  return request;
}

Result<std::string> Injection::Inject(const Machine& machine, const InjectRequest& request) const {
  HOLDFAST_ASSIGN_OR_RETURN(const auto channel, cli::OpenChannel(machine.address, options_));
  const auto stub = FaultInjector::NewStub(channel);
  InjectReply reply;
  grpc::ClientContext call;
  SilenceGuard guard(call, options_.timeout_ms, clock_);
  OnInterrupt cancel([&call] { call.TryCancel(); });
  HOLDFAST_RETURN_IF_ERROR(
      FromTransport(stub->Inject(&call, request, &reply),
                    fmt::format("the fault injector of {} at {}", machine.what, machine.address),
                    options_.timeout_ms, kHint));
  if (reply.code() == 0) return reply.what();
  return Fail(Status(ErrorFromNumber(reply.code()), reply.message()).WithContext(machine.what));
}

Status Injection::End(const Machine& machine, const std::string& drill) const {
  HOLDFAST_ASSIGN_OR_RETURN(const auto channel, cli::OpenChannel(machine.address, options_));
  const auto stub = FaultInjector::NewStub(channel);
  EndRequest request;
  request.set_drill(drill);
  EndReply reply;
  grpc::ClientContext call;
  SilenceGuard guard(call, options_.timeout_ms, clock_);
  HOLDFAST_RETURN_IF_ERROR(
      FromTransport(stub->End(&call, request, &reply),
                    fmt::format("the fault injector of {} at {}", machine.what, machine.address),
                    options_.timeout_ms, kHint));
  return {ErrorFromNumber(reply.code()), reply.message()};
}

Result<std::string> Injection::InjectAll(const DrillPlan& plan, const std::string& drill,
                                         bool dry_run) const {
  std::string what;
  std::string of_coordinator;
  std::vector<std::string> lacking;
  for (const Machine& machine : MachinesOf(plan)) {
    InjectRequest request = RequestOf(plan, machine, drill);
    request.set_dry_run(dry_run);
    auto done = Inject(machine, request);
    if (!done && done.error().code() == ErrorCode::kUnavailable && dry_run) {
      lacking.push_back(fmt::format("{} ({})", machine.what, machine.address));
    } else if (!done) {
      return Fail(done.error());
    } else {
      (machine.node.empty() ? of_coordinator : what) = *done;
    }
  }
  if (!lacking.empty()) {
    return Fail(UnavailableError(
        "no fault injector answers on " + Join(lacking, ", ") +
        ": install the package holdfast-drills there, set drills.enabled = true in "
        "/etc/holdfast/fault.toml and start holdfast-fault; --injector and --coordinator-injector "
        "give other addresses"));
  }
  if (plan.kind == DrillKind::kPowerLoss) what = "on every node: " + what;
  if (!what.empty() && !of_coordinator.empty()) what += "; ";
  return what + of_coordinator;
}

Result<std::string> Injection::Rehearse(const DrillPlan& plan) const {
  return InjectAll(plan, "rehearsal-" + RandomHex(4), true);
}

Result<std::string> Injection::Begin(const DrillPlan& plan, const std::string& drill) const {
  HOLDFAST_ASSIGN_OR_RETURN(std::string what, InjectAll(plan, drill, true));
  return InjectAll(plan, drill, false);
}

Status Injection::End(const DrillPlan& plan, const std::string& drill) const {
  Status first;
  for (const Machine& machine : MachinesOf(plan)) {
    const Status ended = End(machine, drill);
    if (first.ok()) first = ended;
  }
  return first;
}

}  // namespace holdfast::faults
