#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

// Places the ranks of a launch on nodes.

namespace holdfast::coord {

struct PlacementRequest {
  uint32_t nodes = 0;               // number of nodes needed
  std::vector<std::string> before;  // of the previous launch, by node rank; empty: the first launch
  std::set<std::string> usable;     // attached, launches workers, has no other run, not quarantined
  std::set<std::string> avoid;      // usable nodes that are taken only if there are too few others
  std::map<std::string, uint32_t> blamed =
      {};  // by node: recent jobs with an incident that names it
};

struct Placement {
  std::vector<std::string> nodes;  // by node rank; empty: too few are usable
  std::vector<std::string> in;     // nodes that the previous launch did not have
  std::vector<std::string> out;    // nodes that only the previous launch had
  uint32_t lacking = 0;            // if `nodes` is empty: how many more are needed
};

/// Places the ranks. A node keeps its place, so that ranks return to their shards. A place whose
/// node is not usable goes to the other node that the fewest jobs blame, and of several to the
/// first by name; nodes to avoid come last.
Placement Place(const PlacementRequest& request);

}  // namespace holdfast::coord
