#pragma once

#include <cstdint>
#include <vector>

#include "coordinator/detect/table.h"

// The waits-for graph of a job at an instant.

namespace holdfast::detect {

/// One operation that at least one rank has started.
struct Operation {
  Index comm = kNone;
  Func func = Func::kOther;
  uint64_t seq = 0;
  uint64_t oldest_ns = 0;    // since the first rank started it
  uint64_t youngest_ns = 0;  // since the last one that has
  struct Starter {
    uint32_t rank = 0;
    const Flight* flight = nullptr;
  };
  std::vector<Starter> starters;
  std::vector<uint32_t> absent;  // ranks it waits for
  std::vector<uint32_t> left;    // ranks that have already left it
};

/// Vertices 0 … operations − 1 are operations, the ranks follow. Borrows the table's flights.
struct WaitsFor {
  std::vector<Operation> operations;
  /// A rank waits for operations, an operation for its absent members.
  std::vector<std::vector<uint32_t>> operations_of;  // by rank
  /// By rank: its newest word has it in an operation that is over by now. Where it is is not known.
  std::vector<bool> outdated;

  uint32_t vertices() const {
    return static_cast<uint32_t>(operations.size() + operations_of.size());
  }
  bool is_rank(uint32_t vertex) const { return vertex >= operations.size(); }
  uint32_t rank_of(uint32_t vertex) const {
    return vertex - static_cast<uint32_t>(operations.size());
  }
  uint32_t vertex_of_rank(uint32_t rank) const {
    return rank + static_cast<uint32_t>(operations.size());
  }
};

WaitsFor BuildWaitsFor(const Table& table);

/// The strongly connected components that wait for no other, each ascending. Only what operations
/// at least `old_ns` old lead to is looked at.
std::vector<std::vector<uint32_t>> RootsOf(const WaitsFor& graph, uint64_t old_ns);

}  // namespace holdfast::detect
