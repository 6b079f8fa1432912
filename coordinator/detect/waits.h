#pragma once

#include <cstdint>
#include <vector>

#include "coordinator/detect/table.h"

// The waits-for graph of a job at one moment.

namespace holdfast::detect {

/// One operation that at least one rank has started.
struct Operation {
  Index comm = kNone;
  CollectiveKind kind = CollectiveKind::kOther;
  uint64_t sequence = 0;
  uint64_t oldest_ns = 0;    // since the first rank started it
  uint64_t youngest_ns = 0;  // since the most recent rank started it
  struct Starter {
    uint32_t rank = 0;
    const Flight* flight = nullptr;
  };
  std::vector<Starter> starters;
  std::vector<uint32_t> absent;  // ranks that the operation waits for
  std::vector<uint32_t> left;    // ranks that have completed it
};

/// Vertices 0 … operations − 1 are operations; the ranks follow. Points into the table's flights.
struct WaitsForGraph {
  std::vector<Operation> operations;
  /// By rank: the operations it waits for. An operation waits for its absent members.
  std::vector<std::vector<uint32_t>> operations_of;
  /// By rank: its newest report shows it in an operation that has completed since. Its current
  /// operation is unknown.
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

/// Builds the graph from the newest reports. The table must outlive it unchanged.
WaitsForGraph BuildWaitsFor(const Table& table);

/// Returns the strongly connected components that wait for no other component, each ascending.
/// Only vertices reachable from operations that are at least `min_age_ns` old are examined.
std::vector<std::vector<uint32_t>> RootsOf(const WaitsForGraph& graph, uint64_t min_age_ns);

}  // namespace holdfast::detect
