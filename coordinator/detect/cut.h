#pragma once

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/detect/table.h"

// Finds a node or a link that is cut off, from the results of the nodes' probes of each other.

namespace holdfast::detect {

struct Cut {
  std::vector<Index> nodes;                     // these nodes are cut off, or …
  std::optional<std::pair<Index, Index>> link;  // … the link between these two is
  bool certain = true;                          // false: either end of the link may be cut off
  std::string evidence;
};

/// Uses the reports of all nodes that are at most `max_age` old. `suspects`: nodes that may be
/// blamed. A link has failed if it was probed and no probe was answered in either direction. A node
/// is cut off if all of its probed links have failed, and at least two nodes at their other ends
/// reach other nodes. A link is cut if it is the only failed one and both ends reach other nodes,
/// or if the job has only these two nodes and neither answers the other. Returns nullopt if the
/// reports allow no conclusion.
std::optional<Cut> FindCut(const Table& table, const std::set<Index>& suspects,
                           Clock::TimePoint now, Clock::Duration max_age);

/// Returns how many nodes that probed `node` recently received an answer, and how many did not.
std::pair<uint32_t, uint32_t> ProbeResultsOf(const Table& table, Index node, Clock::TimePoint now,
                                             Clock::Duration max_age);

/// Whether any node did not answer a recent probe of another node.
bool AnyProbeFailed(const Table& table, Clock::TimePoint now, Clock::Duration max_age);

}  // namespace holdfast::detect
