#include <algorithm>

#include "coordinator/restart/supervisor.h"

// What operators see.

namespace holdfast::coord {

std::vector<RunView> Supervisor::Runs(const std::string& job) const {
  std::vector<RunView> views;
  for (const auto& [name, run] : runs_) {
    if (!job.empty() && name != job) continue;
    RunView view;
    view.record = run.record;
    view.incarnation = run.incarnation;
    const std::string run_id = run.record.run_id();
    for (uint32_t i = 0; i < run.record.nodes.size(); ++i) {
      const std::string& node = run.record.nodes[i];
      auto known = nodes_.find(node);
      for (uint32_t k = 0; k < run.record.spec.ranks_per_node; ++k) {
        const Rank rank{i * run.record.spec.ranks_per_node + k};
        auto ended = run.ended.find(rank);
        if (ended != run.ended.end()) {
          view.workers.emplace_back(node, ended->second);
          continue;
        }
        if (known == nodes_.end()) continue;
        for (const WorkerState& worker : known->second.workers) {
          if (worker.job == name && worker.run_id == run_id && worker.rank == rank) {
            view.workers.emplace_back(node, worker);
          }
        }
      }
    }
    for (const std::string& node : Usable(&run)) {
      const auto& nodes = run.record.nodes;
      if (std::find(nodes.begin(), nodes.end(), node) == nodes.end()) view.spares.push_back(node);
    }
    views.push_back(std::move(view));
  }
  return views;
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
