#include "coordinator/restart/self_tests.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "coordinator/restart/gpus.h"
#include "coordinator/restart/incidents.h"

namespace holdfast::coord {

void BeginSelfTest(RunContext& context, const std::string& node) {
  // Also above the numbers that the coordinator assigned before its start.
  uint64_t& last = context.table.last_self_test;
  last = std::max(last + 1, static_cast<uint64_t>(std::max<int64_t>(context.at.wall_nanos, 0)));
  context.table.self_tests[node] = last;
}

void RecordSelfTest(RunContext& context, const SelfTested& event) {
  const auto pending = context.table.self_tests.find(event.node);
  if (pending == context.table.self_tests.end() || pending->second != event.number) return;
  const auto node = context.table.nodes.find(event.node);
  if (node == context.table.nodes.end() || node->second.agent_start != event.agent_start) return;
  context.table.self_tests.erase(pending);
  if (event.parts.empty()) return ReleaseNode(context, event.node);
  Failure test;
  test.kind = "self-test";
  test.healthy_until = context.at.now;
  std::vector<std::string> failed;
  for (const SelfTested::Part& part : event.parts) {
    test.evidence.push_back(fmt::format("{}: {}", part.part, part.what));
    if (part.failed) failed.push_back(test.evidence.back());
  }
  std::string plan;
  if (failed.empty()) {
    test.what = fmt::format("node {} has passed its self-test", event.node);
    plan = "the node may get workers again";
    ReleaseNode(context, event.node);
  } else {
    test.what =
        fmt::format("node {} has failed its self-test: {}", event.node, fmt::join(failed, "; "));
    test.nodes = {event.node};
    plan = fmt::format(
        "the node stays in quarantine: replace the part, then `holdfast quarantine {} --release`",
        event.node);
    QuarantineNode(context, event.node,
                   fmt::format("its self-test failed: {}", fmt::join(failed, "; ")));
  }
  IncidentRecord& incident = OpenIncident(context, "", test);
  incident.plan = plan;
  incident.state = IncidentState::kNoted;
  StoreIncident(context, incident, true);
}

void ReleaseNode(RunContext& context, const std::string& node) {
  if (context.table.quarantine.erase(node) != 0) {
    context.effects.emplace_back(EraseQuarantine{node});
    for (auto& [job, run] : context.table.runs) run.strikes.erase(node);
  }
  ClearSuspect(context, node);
}

}  // namespace holdfast::coord
