#include "coordinator/view/run_json.h"

#include <string>
#include <vector>

#include "base/clock.h"

namespace holdfast::view {

Json RunsJson(const coordinator::GetRunsReply& reply) {
  Json runs = Json::array();
  for (const auto& run : reply.runs()) {
    const auto& spec = run.spec();
    runs.push_back(
        {{"job", spec.job()},
         {"phase", run.phase()},
         {"why", run.why()},
         {"run_id", run.run_id()},
         {"incarnation", run.incarnation()},
         {"nnodes", spec.nodes()},
         {"ranks_per_node", spec.ranks_per_node()},
         {"restarts", run.restarts()},
         {"restarts_max", spec.restarts_max()},
         {"started", TimeJson(run.started_wall_nanos())},
         {"nodes", std::vector<std::string>(run.nodes().begin(), run.nodes().end())},
         {"command", std::vector<std::string>(spec.command().begin(), spec.command().end())}});
  }
  return runs;
}

Json QuarantineJson(const coordinator::GetRunsReply& reply) {
  Json nodes = Json::array();
  for (const auto& one : reply.quarantine()) {
    nodes.push_back({{"node", one.node()},
                     {"why", one.why()},
                     {"time", TimeJson(one.wall_nanos())},
                     {"testing", one.testing()}});
  }
  return nodes;
}

Json RunsDocument(const coordinator::GetRunsReply& reply, int64_t now_wall_nanos) {
  return {{"time", FormatUtc(now_wall_nanos)}, {"runs", RunsJson(reply)}};
}

}  // namespace holdfast::view
