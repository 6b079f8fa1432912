#pragma once

#include <cstdint>
#include <span>

// Which losses a parity group survives.
//
// A stripe has one segment of each node: parity on the stripe's leader and the m − 1 nodes after it
// (m = `parity_count`), data on the others. Any k = n − m segments decode the others. So a stripe
// survives as long as it has at most m erasures, and a group as long as all of its stripes do. A
// node may have lost its data and still have its parity, or the reverse: the node is then missing
// from some stripes only. The coordinator applies this rule to decide what can be restored.
// Decoders apply it to refuse what cannot be decoded.

namespace holdfast {

/// What one node of a parity group still has of a version.
struct NodeShards {
  bool data = false;    // all bytes of its image
  bool parity = false;  // the parities that it keeps
};

/// Returns the distance along the ring from the leader of `stripe` to `node`, below `nodes`. The
/// nodes at distances below the number of parities keep the stripe's parities, the others its data.
constexpr uint32_t DistanceFromLeader(uint32_t nodes, uint32_t stripe, uint32_t node) {
  return (node + nodes - stripe) % nodes;
}

/// Returns the number of erasures in the worst stripe of a group with these nodes, in ring order.
uint32_t ErasuresInWorstStripe(uint32_t parity_count, std::span<const NodeShards> nodes);

/// Whether all data and parity of the group can be decoded from what the nodes have. `nodes` is in
/// ring order.
inline bool IsDecodable(uint32_t parity_count, std::span<const NodeShards> nodes) {
  return ErasuresInWorstStripe(parity_count, nodes) <= parity_count;
}

}  // namespace holdfast
