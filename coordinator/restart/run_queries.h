#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/restart/run_table.h"

// Answers to operators about runs, incidents and quarantined nodes.

namespace holdfast::coord {

struct RunStatus {
  RunRecord record;
  std::optional<Incarnation> incarnation;  // of the current launch, once a rank has joined
  std::vector<std::string> spares;
  std::vector<std::pair<std::string, WorkerState>> workers;  // with their nodes, by rank
};

/// Returns the runs of one job, or of all jobs if `job` is empty.
std::vector<RunStatus> RunsOf(const RunReadContext& context, const std::string& job);

/// Returns incidents, newest first. An empty `job` and `id` 0 match all.
std::vector<IncidentRecord> IncidentsOf(const RunReadContext& context, const std::string& job,
                                        uint64_t id);

}  // namespace holdfast::coord
