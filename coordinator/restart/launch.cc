#include "coordinator/restart/launch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "coordinator/restart/gpus.h"
#include "coordinator/restart/incidents.h"
#include "coordinator/restart/placement.h"
#include "coordinator/state/owner.h"

namespace holdfast::coord {
namespace {
constexpr uint32_t kPortFirst = 20'000;  // below the kernel's ephemeral ports
constexpr uint32_t kPorts = 10'000;

/// Returns a port for a launch: an FNV-1a hash, so that successive launches use different ports.
uint32_t PortOf(const std::string& job, const std::string& run_id, uint32_t seed) {
  uint32_t hash = 2166136261U ^ seed;
  for (const std::string* text : {&job, &run_id}) {
    for (const char c : *text) hash = (hash ^ static_cast<uint8_t>(c)) * 16777619U;
  }
  return kPortFirst + hash % kPorts;
}

/// Checks that a launch starts every rank exactly once, on nodes that may have workers.
void CheckLaunch(const RunReadContext& context, const Run& run, const Placement& placement) {
  InvariantMonitor& monitor = *context.options.invariants;
  const std::string& job = run.record.spec.job;
  HOLDFAST_INVARIANT(monitor, placement.nodes.size() == run.record.spec.nodes, Kv("job", job),
                     Kv("placed", placement.nodes.size()), Kv("wanted", run.record.spec.nodes));
  const std::set<std::string> distinct(placement.nodes.begin(), placement.nodes.end());
  HOLDFAST_INVARIANT(monitor, distinct.size() == placement.nodes.size(), Kv("job", job),
                     Kv("nodes", fmt::format("{}", fmt::join(placement.nodes, ","))));
  for (const std::string& node : placement.nodes) {
    HOLDFAST_INVARIANT(
        monitor, !context.table.quarantine.contains(node) && !context.table.drains.contains(node),
        Kv("job", job), Kv("node", node));
    const Run* other = PlacedOn(context, node);
    HOLDFAST_INVARIANT(monitor, other == nullptr || other == &run, Kv("job", job),
                       Kv("node", node));
  }
  HOLDFAST_INVARIANT(monitor, !HasEnded(run.record.phase), Kv("job", job),
                     Kv("phase", ToString(run.record.phase)));
}

void Launch(RunContext& context, Run& run, const Placement& placement) {
  CheckLaunch(context, run, placement);
  const std::vector<std::string> before = run.record.nodes;
  run.record.nodes = placement.nodes;
  ++run.record.launches;
  run.record.life = context.options.life;
  ++run.record.fruitless;
  run.record.phase = RunPhase::kStarting;
  run.record.why.clear();
  run.incarnation.reset();
  run.committed = false;
  run.restore_refused = Status::Ok();
  run.launched_at = context.at.now;
  run.first_failure_at.reset();
  run.ended.clear();
  run.avoid.clear();
  StoreRun(context, run);
  for (auto& [id, incident] : context.table.incidents) {
    if (incident.job != run.record.spec.job || incident.state != IncidentState::kOpen) continue;
    if (incident.decide_ms) continue;
    incident.plan = fmt::format("all ranks start again as {}", run.record.run_id());
    if (!placement.in.empty()) {
      incident.plan +=
          fmt::format("; {} for {}", fmt::join(placement.in, ", "), fmt::join(placement.out, ", "));
    }
  }
  MarkIncidents(context, run.record.spec.job, &IncidentRecord::decide_ms);
  for (const std::string& node : before) {
    const auto& now = run.record.nodes;
    if (std::find(now.begin(), now.end(), node) == now.end()) {
      SendWorkers(context, node, run.record.spec.job);
    }
  }
  SendWorkersToNodes(context, run);
}

SetWorkers WorkersFor(const RunReadContext& context, const Run& run, const std::string& node) {
  const RunRecord& record = run.record;
  SetWorkers directive;
  directive.job = record.spec.job;
  directive.grace_ms = record.spec.grace_ms;
  const auto place = std::find(record.nodes.begin(), record.nodes.end(), node);
  const bool due = record.phase == RunPhase::kStarting || record.phase == RunPhase::kRunning ||
                   record.phase == RunPhase::kStopping;
  if (!due || place == record.nodes.end()) return directive;
  directive.run_id = record.run_id();
  directive.node_rank = static_cast<uint32_t>(place - record.nodes.begin());
  directive.nodes = record.spec.nodes;
  directive.ranks = record.spec.ranks_per_node;
  directive.first_rank = Rank{directive.node_rank * directive.ranks};
  directive.world = record.spec.world();
  const auto master = context.table.nodes.find(record.nodes.front());
  if (master != context.table.nodes.end()) directive.master_address = master->second.worker_address;
  directive.master_port = PortOf(directive.job, directive.run_id, context.options.port_seed);
  directive.restarts = record.restarts();
  directive.restarts_max = record.spec.restarts_max;
  directive.command = record.spec.command;
  directive.environment = record.spec.environment;
  directive.directory = record.spec.directory;
  directive.uid = record.spec.uid;
  return directive;
}

std::set<std::string> NodesToAvoid(const RunReadContext& context, const Run& run) {
  std::set<std::string> avoid = run.avoid;
  for (std::string& name : SuspectNodes(context)) avoid.insert(std::move(name));
  return avoid;
}

/// Returns why the node can have no workers of `run`; empty: the node is usable.
std::string UnusableBecause(const RunReadContext& context, const Run* run, const std::string& name,
                            const WorkerNode& node) {
  if (!node.attached) return "lost";
  if (node.worker_address.empty()) return "workers.enabled is off";
  if (context.table.quarantine.contains(name)) return "in quarantine";
  if (context.table.drains.contains(name)) return "drained";
  // An agent of the previous version starts all workers as its own user, which may be root.
  const bool other_user = run != nullptr && run->record.spec.uid.value_or(kRootUser) != kRootUser;
  if (other_user && !node.worker_users) return "an older agent, which runs workers of root only";
  const Run* other = PlacedOn(context, name);
  if (other != nullptr && other != run) return "has workers of another run";
  return "";
}

/// Returns the reasons why nodes are not usable, each with its first nodes, as
/// "n1, n2 and 5 more: lost; n8: drained".
std::string DescribeUnusable(const RunReadContext& context, const Run& run) {
  constexpr size_t kNamed = 2;
  if (context.table.nodes.empty()) return "no agent is attached";
  std::map<std::string, std::vector<std::string>> nodes_of;
  for (const auto& [name, node] : context.table.nodes) {
    const std::string reason = UnusableBecause(context, &run, name, node);
    if (!reason.empty()) nodes_of[reason].push_back(name);
  }
  std::vector<std::string> parts;
  for (const auto& [reason, names] : nodes_of) {
    const size_t named = std::min(names.size(), kNamed);
    std::string part = fmt::format("{}", fmt::join(names.begin(), names.begin() + named, ", "));
    if (names.size() > named) part += fmt::format(" and {} more", names.size() - named);
    parts.push_back(part + ": " + reason);
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}
}  // namespace

void TryLaunch(RunContext& context, Run& run) {
  PlacementRequest request;
  request.nodes = run.record.spec.nodes;
  request.before = run.record.nodes;
  request.usable = UsableNodes(context, &run);
  request.avoid = NodesToAvoid(context, run);
  request.blamed = BlamedNodes(context);
  // Only the first launch also waits for the spares.
  if (run.record.launches == 0) request.nodes += run.record.spec.spares;
  Placement placement = Place(request);
  if (!placement.nodes.empty()) {
    if (run.record.launches == 0) {
      request.nodes = run.record.spec.nodes;
      placement = Place(request);
    }
    return Launch(context, run, placement);
  }
  std::string why = fmt::format("waits for {} more node{} that can launch workers",
                                placement.lacking, placement.lacking == 1 ? "" : "s");
  const std::string unusable = DescribeUnusable(context, run);
  if (!unusable.empty()) why += fmt::format(" ({})", unusable);
  if (why == run.record.why) return;
  run.record.why = std::move(why);
  StoreRun(context, run);
}

void EndRun(RunContext& context, Run& run, RunPhase phase, std::string why) {
  run.record.phase = phase;
  run.record.why = std::move(why);
  StoreRun(context, run);
  SendWorkersToNodes(context, run);
  CloseIncidents(
      context, run.record.spec.job,
      phase == RunPhase::kFinished ? IncidentState::kRecovered : IncidentState::kGivenUp);
}

std::set<std::string> UsableNodes(const RunReadContext& context, const Run* run) {
  std::set<std::string> usable;
  for (const auto& [name, node] : context.table.nodes) {
    if (UnusableBecause(context, run, name, node).empty()) usable.insert(name);
  }
  return usable;
}

void SendWorkers(RunContext& context, const std::string& name, const std::string& job) {
  const WorkerNode& node = context.table.nodes[name];
  if (!node.attached || node.worker_address.empty()) return;
  const Run* run = FindRun(context, job);
  if (run != nullptr) return SendDirective(context, *node.attach, WorkersFor(context, *run, name));
  SetWorkers none;
  none.job = job;
  SendDirective(context, *node.attach, std::move(none));
}

void SendWorkersToNodes(RunContext& context, const Run& run) {
  for (const std::string& node : run.record.nodes) SendWorkers(context, node, run.record.spec.job);
}

}  // namespace holdfast::coord
