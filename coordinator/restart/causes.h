#pragma once

#include <optional>

#include "coordinator/restart/incidents.h"
#include "coordinator/restart/run_table.h"

// Why a launch failed: a lost node, a node that does not start its workers, or a worker that ended.
//
// Of several workers that end, one is the cause: the first on a node whose GPU failed, else the
// first that a signal killed, else the first to end. A killed worker is the cause at once. Among
// workers that exit on their own, the cause is chosen after a settle time, and not while a node of
// the launch is silent. A lost node is replaced when its patience is over, and at once when the
// launch has failed anyway. The patience is longer for a node that probably comes back, and while
// other nodes still seal versions.

namespace holdfast::coord {

/// Returns how the launch has failed, with the cause. Returns nothing if the launch has not failed,
/// or while the cause is not known yet.
std::optional<Failure> FindFailure(RunContext& context, Run& run);

}  // namespace holdfast::coord
