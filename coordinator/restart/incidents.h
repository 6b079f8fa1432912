#pragma once

#include <string>
#include <vector>

#include "coordinator/restart/run_table.h"

// Incidents: the records of faults and of the response to them.
//
// An incident is open while a recovery is in progress. It gets a time for each stage that the
// recovery reaches, once: decided, the old launch stopped, the version to restore decided, the
// first new version. The next committed version closes it as recovered; the end of the run closes
// it as given up. A note needs no action: it is recorded at once, and a repetition of the same text
// for the same job within ten minutes is dropped. The oldest incidents are erased beyond the
// maximum.

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

/// Adds an open incident for the failure. It is not stored yet: the caller completes it first.
IncidentRecord& OpenIncident(RunContext& context, const std::string& job, const Failure& failure);

/// Records an incident that needs no action now. Ignores a repetition within kRepeatWindow.
void NoteIncident(RunContext& context, const std::string& job, const Failure& failure,
                  const std::string& plan);

/// Adds the effect that stores the incident.
void StoreIncident(RunContext& context, const IncidentRecord& incident, bool opened);

/// Returns the time since the last sign of health before the incident.
int64_t MsSince(const RunReadContext& context, const IncidentRecord& incident);

/// Sets `time` of the job's open incidents, unless it is set: the event that they waited for has
/// happened.
void MarkIncidents(RunContext& context, const std::string& job, int64_t IncidentRecord::*time);

/// Moves the open incidents of the job to `state`.
void CloseIncidents(RunContext& context, const std::string& job, IncidentState state);

/// Records a finding of State as an incident: one that has a kind, or that is damage.
void NoteFinding(RunContext& context, const Finding& finding);

}  // namespace holdfast::coord
