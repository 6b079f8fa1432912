#pragma once

#include <cstdint>
#include <optional>
#include <string>

// Describes for operators which losses a version survives.

namespace holdfast::coord {

struct Survival {
  /// How many nodes of each parity group may be lost at once, with their memory and disks.
  uint32_t nodes = 0;
  /// The same if all memory is lost too, as in a power cut. Nothing if the disks alone cannot
  /// restore the version.
  std::optional<uint32_t> nodes_after_power_cut;
  /// A shared tier has all shards.
  bool all_nodes = false;
};

/// Returns for example "any 2 nodes of each group", "full power cut", "any 1 node of each group +
/// full power cut" (both at once), "any 2 nodes of each group; full power cut" (either one), "all
/// nodes", or "process loss only". Pure.
std::string ToString(const Survival& survival);

}  // namespace holdfast::coord
