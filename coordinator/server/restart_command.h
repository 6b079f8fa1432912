#pragma once

#include <string>

#include "coordinator/state/run_records.h"

namespace holdfast::coord {

/// Runs `command` by /bin/sh and does not wait for it. What happened is in its environment:
/// HOLDFAST_JOB, HOLDFAST_INCIDENT (the number), HOLDFAST_KIND, HOLDFAST_WHAT, and HOLDFAST_RANKS
/// and HOLDFAST_NODES, separated by commas.
void RunRestartCommand(const std::string& command, const IncidentRecord& incident);

}  // namespace holdfast::coord
