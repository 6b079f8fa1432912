#pragma once

#include <string>
#include <vector>

#include "coordinator/restart/incidents.h"
#include "coordinator/restart/run_table.h"

// GPU errors that the nodes' drivers report.
//
// An error alone stops no job: many jobs continue, and a job that fails is detected anyway. An
// error becomes an incident of each job on the node and evidence for any fault within ten minutes.
// For one minute, a hardware error takes precedence over all other causes. A node with a GPU that
// needs a reset or a repair is suspect for a day, or until an operator releases it: launches avoid
// it while other nodes are available. Only the newest such error of a node is stored.

namespace holdfast::coord {

/// Records a reported error. Repetitions, and errors from an earlier start of the agent, are
/// ignored.
void RecordGpuError(RunContext& context, const GpuFailed& event);

/// Loads a stored error. It counts as a cause and as evidence, as it did before the restart of the
/// coordinator.
void RestoreSuspect(RunContext& context, const SuspectRecord& record);

/// Removes the suspicion from a node that an operator has repaired. Does nothing if there is none.
void ClearSuspect(RunContext& context, const std::string& node);

/// Returns the nodes with a GPU that needs a reset or a repair.
std::vector<std::string> SuspectNodes(const RunReadContext& context);

/// Whether a GPU of the node failed so recently that it may be the cause of another failure.
bool HardwareFailedRecently(const RunReadContext& context, const std::string& node);

/// Puts the newest GPU errors of the nodes before the other evidence, since they may explain it.
void AddGpuErrors(const RunReadContext& context, const std::vector<std::string>& nodes,
                  Failure& failure);

}  // namespace holdfast::coord
