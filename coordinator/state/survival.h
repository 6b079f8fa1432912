#pragma once

#include <cstdint>
#include <optional>
#include <string>

// What may be lost so that a version can still be restored, in the words of operators.

namespace holdfast::coord {

struct Survival {
  /// Nodes of each parity group, with everything on them, at once.
  uint32_t nodes = 0;
  /// The same on top of all memory, as a power cut takes it; nothing: the disks alone do not have
  /// the version.
  std::optional<uint32_t> nodes_of_power_cut;
};

/// "any 2 nodes of each group", "full power cut", "any 1 node of each group + full power cut" (both
/// at once), "any 2 nodes of each group; full power cut" (either), "process loss only". Pure.
std::string ToString(const Survival& survival);

}  // namespace holdfast::coord
