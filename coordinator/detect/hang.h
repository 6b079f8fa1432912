#pragma once

#include <vector>

#include "coordinator/detect/table.h"

// Why nothing moves: the waits-for graph.

namespace holdfast::detect {

/// Ranks whose processes ended other than well.
std::vector<Verdict> FindDead(const Table& table);

struct Hangs {
  std::vector<Verdict> found;  // those that are only suspected have no action
  /// How long the job has stood still outside of marked phases; 0 when it moves.
  uint64_t stall_ns = 0;
};

/// The roots of a hang. A rank waits for the operations that it has started, an operation for its
/// members that have not; what waits for nothing further is a root:
///   a rank                → it hangs outside of communication (or is dead, or its node is)
///   a complete operation  → its transfers hang; the least advanced connection is followed
///   a circle of several   → the program deadlocks
/// Before that: members of one operation with different sizes or types are a software mismatch.
/// Suspected from `hang_after` on; a verdict once the root has not moved for its patience
/// (patience.h), or at once where its process is stopped or its node out of reach. Nothing about
/// ranks in a marked phase that is not far longer than usual.
Hangs FindHangs(const Table& table, Clock::TimePoint now, const DetectorOptions& options);

}  // namespace holdfast::detect
