#pragma once

#include <optional>

#include "coordinator/restart/incidents.h"
#include "coordinator/restart/run_table.h"

// Why a launch fails: a lost node, a node that does not start its workers, or a worker that ended.
//
// Of several workers that end, one is the cause: the first on a node whose GPU failed, else the
// first that a signal killed, else the first to end. A killed worker is the cause at once. Workers
// that exit on their own are judged when no further one can still be a consequence: after a settle
// time, and not while a node of the launch is silent. A lost node is replaced when its patience is
// over, which is longer for a node that probably comes back or while others still seal versions,
// and at once when the launch has failed anyway.

namespace holdfast::coord {

/// Returns how the launch has failed and the cause; nothing while it has not, or the cause is open.
std::optional<Failure> FindFailure(RunContext& context, Run& run);

}  // namespace holdfast::coord
