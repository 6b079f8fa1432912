#pragma once

#include <cstdint>
#include <vector>

#include "agent/pipeline/rank_registry.h"

namespace holdfast::agent {

/// The state of a rank, for operators and the metrics.
struct RankStatus {
  SegmentOwner owner;
  uint64_t slot_bytes = 0;
  bool in_collective = false;
  uint64_t collectives = 0;  // begun, as the rank's trainers report
  std::vector<SlotStatus> slots;
};

/// Returns the status of all ranks, parity and retained segments included. Threads: any.
std::vector<RankStatus> StatusOf(RankRegistry& ranks);

/// Returns whether any connected trainer of the node reports running collectives. Threads: any.
bool InCollective(RankRegistry& ranks);

}  // namespace holdfast::agent
