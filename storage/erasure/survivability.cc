#include "storage/erasure/survivability.h"

#include <algorithm>

namespace holdfast {

uint32_t ErasuresInWorstStripe(uint32_t parity_count, std::span<const NodeShards> nodes) {
  const auto count = static_cast<uint32_t>(nodes.size());
  uint32_t most = 0;
  for (uint32_t stripe = 0; stripe < count; ++stripe) {
    uint32_t erasures = 0;
    for (uint32_t node = 0; node < count; ++node) {
      const bool keeps_parity = DistanceFromLeader(count, stripe, node) < parity_count;
      if (!(keeps_parity ? nodes[node].parity : nodes[node].data)) ++erasures;
    }
    most = std::max(most, erasures);
  }
  return most;
}

}  // namespace holdfast
