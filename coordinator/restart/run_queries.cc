#include "coordinator/restart/run_queries.h"

#include <algorithm>

#include "coordinator/restart/launch.h"

namespace holdfast::coord {

std::vector<RunStatus> RunsOf(const RunReadContext& context, const std::string& job) {
  std::vector<RunStatus> statuses;
  for (const auto& [name, run] : context.table.runs) {
    if (!job.empty() && name != job) continue;
    RunStatus status;
    status.record = run.record;
    status.incarnation = run.incarnation;
    const std::string run_id = run.record.run_id();
    for (uint32_t i = 0; i < run.record.nodes.size(); ++i) {
      const std::string& node = run.record.nodes[i];
      auto known = context.table.nodes.find(node);
      for (uint32_t k = 0; k < run.record.spec.ranks_per_node; ++k) {
        const Rank rank{i * run.record.spec.ranks_per_node + k};
        auto ended = run.ended.find(rank);
        if (ended != run.ended.end()) {
          status.workers.emplace_back(node, ended->second);
          continue;
        }
        if (known == context.table.nodes.end()) continue;
        for (const WorkerState& worker : known->second.workers) {
          if (worker.job == name && worker.run_id == run_id && worker.rank == rank) {
            status.workers.emplace_back(node, worker);
          }
        }
      }
    }
    for (const std::string& node : UsableNodes(context, &run)) {
      const auto& nodes = run.record.nodes;
      if (std::find(nodes.begin(), nodes.end(), node) == nodes.end()) status.spares.push_back(node);
    }
    statuses.push_back(std::move(status));
  }
  return statuses;
}

std::vector<IncidentRecord> IncidentsOf(const RunReadContext& context, const std::string& job,
                                        uint64_t id) {
  std::vector<IncidentRecord> found;
  for (auto it = context.table.incidents.rbegin(); it != context.table.incidents.rend(); ++it) {
    if ((job.empty() || it->second.job == job) && (id == 0 || it->first == id)) {
      found.push_back(it->second);
    }
  }
  return found;
}

}  // namespace holdfast::coord
