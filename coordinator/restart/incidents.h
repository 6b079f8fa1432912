#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/restart/run_table.h"

// Incidents: the records of faults and of the response to them.
//
// An incident is open while a recovery is in progress. It gets one time for each stage that the
// recovery reaches: the action is decided, the old launch has stopped, all workers of the new
// launch run on their nodes, the version to restore is decided, the first new version is committed.
// The next committed version closes the incident as recovered. So does the successful end of the
// run; any other end closes it as given up. A note needs no action: it is recorded at once, and a
// repetition of the same text for the same job within ten minutes is dropped. If there are more
// incidents than the maximum, the oldest are erased.

namespace holdfast::coord {

inline constexpr size_t kEvidenceMax = 32;  // lines of an incident

inline int64_t Milliseconds(Clock::Duration time) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(time).count();
}

/// A fault, and its cause as far as it is known.
struct Failure {
  std::string kind;
  std::string what;
  std::vector<std::string> evidence;
  std::vector<Rank> ranks;
  std::vector<std::string> nodes;
  bool avoid_nodes = false;
  Clock::TimePoint healthy_until;
  std::string own_exit = {};    // how the worker exited on its own; empty: it was killed
  std::string last_lines = {};  // of that worker's output
};

/// Adds an open incident for the failure. The caller completes it and calls StoreIncident().
IncidentRecord& OpenIncident(RunContext& context, const std::string& job, const Failure& failure);

/// Records an incident that needs no action now. Ignores a repetition within kRepeatWindow.
void NoteIncident(RunContext& context, const std::string& job, const Failure& failure,
                  const std::string& plan);

/// Adds the effect that stores the incident.
void StoreIncident(RunContext& context, const IncidentRecord& incident, bool opened);

/// Returns the time since the last sign of health before the incident.
int64_t MsSince(const RunReadContext& context, const IncidentRecord& incident);

/// Sets the member `time` of the job's open incidents to now, where it is not set yet: the recovery
/// has reached that stage.
void MarkIncidents(RunContext& context, const std::string& job,
                   std::optional<int64_t> IncidentRecord::*time);

/// Moves the open incidents of the job to `state`.
void CloseIncidents(RunContext& context, const std::string& job, IncidentState state);

/// Returns, by node, the number of jobs that had an incident in the last week which names the node
/// and at most one other. A fault of one job counts once, however often it occurs.
std::map<std::string, uint32_t> BlamedNodes(const RunReadContext& context);

/// Records a finding of State as an incident if it has a kind or reports damage.
void NoteFinding(RunContext& context, const Finding& finding);

}  // namespace holdfast::coord
