#pragma once

#include <string>

#include "coordinator/restart/incidents.h"
#include "coordinator/restart/run_table.h"

// Jobs of other launchers: restart.command makes the launcher start a job again.
//
// The command is scheduled once for each failed incarnation. It is repeated with growing pauses
// until it succeeds, the attempts are used up, the job has started again or an operator
// acknowledges the incident. It never runs within the cooldown after its last run for the same job.
// Only a success is stored, so after a restart of the coordinator the command of every other open
// incident runs again.

namespace holdfast::coord {

/// Loads the open incidents of jobs of other launchers. Unless a success is stored, the command
/// runs again after the cooldown, except if the job has started again by then.
void LoadExternalRestarts(RunContext& context, const Records& records);

/// Schedules restart.command for a fault. Returns false if nothing is scheduled; `incident.plan`
/// then states the reason, unless no command is configured.
bool StartRestartCommand(RunContext& context, const FaultDetected& event, IncidentRecord& incident);

/// Runs the commands that are due.
void AdvanceRestartCommands(RunContext& context);

/// Records the end of a command. After a success, the job is expected to start again; otherwise a
/// further attempt is scheduled, if one is left.
void RecordCommandEnd(RunContext& context, const RestartCommandEnded& event);

/// Ends the runs of the command for the job, since its incarnation `newer` has started.
void EndExternalRestart(RunContext& context, const std::string& job, Incarnation newer);

/// Acknowledges the incident, which an operator has handled: its command does not run again.
void AcknowledgeIncident(RunContext& context, const AcknowledgeRequested& event);

}  // namespace holdfast::coord
