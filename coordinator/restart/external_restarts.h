#pragma once

#include <string>

#include "coordinator/restart/incidents.h"
#include "coordinator/restart/run_table.h"

// Jobs of other launchers: restart.command makes the launcher start a job again.
//
// The command is scheduled once for each failed incarnation. It is repeated with growing pauses
// until it succeeds, the attempts are used up, the job is back or an operator acknowledges the
// incident, and never within the cooldown after its last run for the same job. After a restart of
// the coordinator only a success is known, so the command of every other open incident runs again.

namespace holdfast::coord {

/// Loads open incidents of jobs of other launchers. A coordinator that ran a command may have
/// stopped before the command ended: only a success is stored. So all other commands are run again
/// after the cooldown, unless the job comes back first.
void LoadExternalRestarts(RunContext& context, const Records& records);

/// Schedules restart.command for a fault. Returns false if nothing is scheduled; `incident.plan`
/// then has the reason, unless there is no command.
bool StartRestartCommand(RunContext& context, const FaultDetected& event, IncidentRecord& incident);

/// Runs the commands that are due.
void AdvanceRestartCommands(RunContext& context);

/// Records the end of a command: the job is expected back, or a further attempt is scheduled.
void RecordCommandEnd(RunContext& context, const RestartCommandEnded& event);

/// The job has started again: no further command is needed.
void EndExternalRestart(RunContext& context, const std::string& job, Incarnation newer);

/// An operator has handled the incident: its command is not run again.
void AcknowledgeIncident(RunContext& context, const AcknowledgeRequested& event);

}  // namespace holdfast::coord
