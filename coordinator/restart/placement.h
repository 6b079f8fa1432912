#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

// Which node runs which ranks of a launch.

namespace holdfast::coord {

struct PlacementQuestion {
  uint32_t nodes = 0;               // wanted
  std::vector<std::string> before;  // of the launch before, by node rank; empty: the first launch
  std::set<std::string> usable;     // attached, launches workers, has no others, not quarantined
  std::set<std::string> avoid;      // usable ones to be left out if there are enough others
};

struct Placement {
  std::vector<std::string> nodes;  // by node rank; empty: there are too few
  std::vector<std::string> in;     // that were not there before
  std::vector<std::string> out;    // that were there before
  uint32_t lacking = 0;            // with no nodes: how many more are needed
};

/// Nodes keep their places, so that ranks return to where their shards are; a place whose node
/// cannot be used goes to the first other one by name. What is to be avoided comes last.
Placement Place(const PlacementQuestion& question);

}  // namespace holdfast::coord
