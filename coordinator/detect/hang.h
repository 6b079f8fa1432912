#pragma once

#include <vector>

#include "coordinator/detect/table.h"

// Why nothing moves: the waits-for graph.

namespace holdfast::detect {

/// Ranks whose processes ended other than well.
std::vector<Verdict> FindDead(const Table& table);

/// The roots of a hang. A rank waits for the operations that it has started, an operation for its
/// members that have not; what waits for nothing further is a root:
///   a rank                → it hangs outside of communication (or is dead, or its node is)
///   a complete operation  → its transfers hang; the least advanced connection is followed
///   a circle of several   → the program deadlocks
/// Before that: members of one operation with different sizes or types are a software mismatch.
/// Nothing while every operation is younger than the time it may take, and nothing about ranks that
/// say they are in a phase without steps.
std::vector<Verdict> FindHangs(const Table& table, Clock::TimePoint now,
                               const DetectorOptions& options);

}  // namespace holdfast::detect
