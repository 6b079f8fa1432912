#include <algorithm>

#include "coordinator/restart/supervisor.h"

// Answers to operators.

namespace holdfast::coord {

std::vector<RunStatus> Supervisor::Runs(const std::string& job) const {
  std::vector<RunStatus> statuses;
  for (const auto& [name, run] : runs_) {
    if (!job.empty() && name != job) continue;
    RunStatus status;
    status.record = run.record;
    status.incarnation = run.incarnation;
    const std::string run_id = run.record.run_id();
    for (uint32_t i = 0; i < run.record.nodes.size(); ++i) {
      const std::string& node = run.record.nodes[i];
      auto known = nodes_.find(node);
      for (uint32_t k = 0; k < run.record.spec.ranks_per_node; ++k) {
        const Rank rank{i * run.record.spec.ranks_per_node + k};
        auto ended = run.ended.find(rank);
        if (ended != run.ended.end()) {
          status.workers.emplace_back(node, ended->second);
          continue;
        }
        if (known == nodes_.end()) continue;
        for (const WorkerState& worker : known->second.workers) {
          if (worker.job == name && worker.run_id == run_id && worker.rank == rank) {
            status.workers.emplace_back(node, worker);
          }
        }
      }
    }
    for (const std::string& node : Usable(&run)) {
      const auto& nodes = run.record.nodes;
      if (std::find(nodes.begin(), nodes.end(), node) == nodes.end()) status.spares.push_back(node);
    }
    statuses.push_back(std::move(status));
  }
  return statuses;
}

std::vector<IncidentRecord> Supervisor::Incidents(const std::string& job, uint64_t id) const {
  std::vector<IncidentRecord> found;
  for (auto it = incidents_.rbegin(); it != incidents_.rend(); ++it) {
    if ((job.empty() || it->second.job == job) && (id == 0 || it->first == id)) {
      found.push_back(it->second);
    }
  }
  return found;
}

std::vector<QuarantineRecord> Supervisor::Quarantined() const {
  std::vector<QuarantineRecord> list;
  for (const auto& [node, record] : quarantine_) list.push_back(record);
  return list;
}

}  // namespace holdfast::coord
