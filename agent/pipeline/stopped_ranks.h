#pragma once

#include <set>
#include <string>

#include "agent/pipeline/coordinator_link.h"
#include "agent/pipeline/rank_registry.h"
#include "agent/pipeline/warnings.h"

namespace holdfast::agent {

/// Withdraws the memory of ranks whose invariants are violated: the coordinator must not count
/// replicas that the agent no longer serves. The memory itself stays with the keeper; a restarted
/// agent verifies it and reports what is intact. Thread-compatible.
class StoppedRanks {
 public:
  /// The arguments outlive the object.
  StoppedRanks(RankRegistry& ranks, CoordinatorLink& link, Warnings& warnings)
      : ranks_(ranks), link_(link), warnings_(warnings) {}

  /// Finds the ranks that have stopped since the last call.
  void Tick();

 private:
  RankRegistry& ranks_;
  CoordinatorLink& link_;
  Warnings& warnings_;
  std::set<uint64_t> withdrawn_;  // IDs of segments
  std::string text_;              // the warning about them
};

}  // namespace holdfast::agent
