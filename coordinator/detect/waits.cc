#include "coordinator/detect/waits.h"

#include <algorithm>
#include <tuple>

namespace holdfast::detect {
namespace {

/// A started flight with the operation it belongs to. The two sides of a transfer between two ranks
/// are one operation. `pair` holds the sender and the receiver, since each side has its own
/// ordinals.
struct Started {
  Index comm = kNone;
  CollectiveKind kind = CollectiveKind::kOther;
  uint64_t sequence = 0;
  uint64_t pair = 0;
  uint32_t rank = 0;
  const Flight* flight = nullptr;
  auto key() const { return std::tie(comm, kind, pair, sequence); }
};

std::vector<Started> StartedFlights(const Table& table) {
  std::vector<Started> started;
  for (uint32_t rank = 0; rank < table.world(); ++rank) {
    // A process that is stopped or has ended takes part in no operation, even if it started one:
    // other ranks wait for it.
    const RankState& state = table.rank(rank).latest;
    if (state.process_state == 'T' || !state.alive) continue;
    for (const Flight& flight : table.rank(rank).flights) {
      if (!flight.started) continue;
      // A communicator of one rank has no peers to wait for.
      if (table.comm(flight.comm).members.size() < 2) continue;
      Started entry{flight.comm, flight.record.kind, flight.record.sequence, 0, rank, &flight};
      if (IsPairwise(flight.record.kind)) {
        if (!flight.edge) continue;  // the peer is unknown
        const uint64_t peer = flight.edge->peer.value;
        entry.pair = flight.record.kind == CollectiveKind::kSend ? uint64_t{rank} << 32U | peer
                                                                 : peer << 32U | uint64_t{rank};
        entry.kind = CollectiveKind::kSend;
        entry.sequence = 0;
      }
      started.push_back(entry);
    }
  }
  std::sort(started.begin(), started.end(), [](const Started& a, const Started& b) {
    // Of several transfers of a rank with the same peer, the oldest comes first.
    return std::tie(a.comm, a.kind, a.pair, a.sequence, a.rank, b.flight->age_ns) <
           std::tie(b.comm, b.kind, b.pair, b.sequence, b.rank, a.flight->age_ns);
  });
  return started;
}

/// A set of ranks that Begin() empties in constant time.
class Marks {
 public:
  explicit Marks(size_t ranks) : stamps_(ranks) {}
  void Begin() { ++stamp_; }
  void Set(uint32_t rank) { stamps_[rank] = stamp_; }
  bool Has(uint32_t rank) const { return stamps_[rank] == stamp_; }

 private:
  std::vector<uint32_t> stamps_;
  uint32_t stamp_ = 0;
};

/// The number of operations of the kind that the member is known to have completed.
uint64_t LeftCount(const Table& table, uint32_t position, const Operation& operation) {
  const CommInfo& comm = table.comm(operation.comm);
  const auto& row = comm.completed[static_cast<size_t>(operation.kind)];
  uint64_t left = row.empty() ? 0 : row[position];
  for (const Flight& flight : table.rank(comm.members[position]).flights) {
    if (flight.comm == operation.comm && flight.record.kind == operation.kind && flight.started) {
      left = std::max(left, flight.record.sequence);
    }
  }
  return left;
}

/// Fills in the absent members. Returns false if the operation has completed and the reports of its
/// starters are out of date.
bool FindAbsent(const Table& table, uint64_t pair, Marks& marks, Operation& operation) {
  marks.Begin();
  for (const Operation::Starter& starter : operation.starters) marks.Set(starter.rank);
  if (pair != 0) {
    for (const auto rank : {static_cast<uint32_t>(pair >> 32U), static_cast<uint32_t>(pair)}) {
      if (!marks.Has(rank)) operation.absent.push_back(rank);
    }
    return true;
  }
  const std::vector<uint32_t>& members = table.comm(operation.comm).members;
  std::vector<uint32_t> far_ahead;
  for (uint32_t position = 0; position < members.size(); ++position) {
    const uint32_t rank = members[position];
    const uint64_t left = LeftCount(table, position, operation);
    if (left > operation.sequence + 1 && IsSynchronous(operation.kind)) {
      far_ahead.push_back(rank);
    } else if (left > operation.sequence) {
      operation.left.push_back(rank);
    } else if (!marks.Has(rank)) {
      operation.absent.push_back(rank);
    }
  }
  // No member can be two operations ahead before all members complete this one. Two such reports
  // (one in a pair) show that the operation has completed. A single one is implausible.
  if (far_ahead.size() >= 2 || (far_ahead.size() == 1 && members.size() == 2)) return false;
  for (uint32_t rank : far_ahead) {
    if (!marks.Has(rank)) operation.absent.push_back(rank);
  }
  return true;
}

/// Strongly connected components by Tarjan's algorithm, without recursion. `component_` is kNone
/// for vertices that were not reached.
class Components {
 public:
  explicit Components(const WaitsForGraph& graph)
      : graph_(graph),
        order_(graph.vertices(), kNone),
        low_(graph.vertices()),
        component_(graph.vertices(), kNone) {}

  void Visit(uint32_t from) {
    if (order_[from] != kNone) return;
    Enter(from);
    while (!path_.empty()) {
      Step& step = path_.back();
      const std::vector<uint32_t>& next = Next(step.vertex);
      if (step.child < next.size()) {
        const uint32_t child = Vertex(step.vertex, next[step.child++]);
        if (order_[child] == kNone) {
          Enter(child);
        } else if (component_[child] == kNone) {
          low_[step.vertex] = std::min(low_[step.vertex], order_[child]);
        }
      } else {
        Leave();
      }
    }
  }

  /// Returns the members of each component that has no outgoing edge.
  std::vector<std::vector<uint32_t>> Sinks() const {
    std::vector<bool> leads_out(count_);
    std::vector<std::vector<uint32_t>> members(count_);
    for (uint32_t vertex = 0; vertex < graph_.vertices(); ++vertex) {
      if (component_[vertex] == kNone) continue;
      members[component_[vertex]].push_back(vertex);
      for (uint32_t next : Next(vertex)) {
        if (component_[Vertex(vertex, next)] != component_[vertex]) {
          leads_out[component_[vertex]] = true;
          break;
        }
      }
    }
    std::vector<std::vector<uint32_t>> sinks;
    for (uint32_t i = 0; i < count_; ++i) {
      if (!leads_out[i]) sinks.push_back(std::move(members[i]));
    }
    return sinks;
  }

 private:
  struct Step {
    uint32_t vertex = 0;
    size_t child = 0;
  };

  const std::vector<uint32_t>& Next(uint32_t vertex) const {
    return graph_.is_rank(vertex) ? graph_.operations_of[graph_.rank_of(vertex)]
                                  : graph_.operations[vertex].absent;
  }
  /// The target of an edge: ranks point to operations, operations to ranks.
  uint32_t Vertex(uint32_t from, uint32_t next) const {
    return graph_.is_rank(from) ? next : graph_.vertex_of_rank(next);
  }
  void Enter(uint32_t vertex) {
    order_[vertex] = low_[vertex] = clock_++;
    stack_.push_back(vertex);
    path_.push_back({vertex, 0});
  }
  void Leave() {
    const uint32_t vertex = path_.back().vertex;
    path_.pop_back();
    if (!path_.empty()) {
      low_[path_.back().vertex] = std::min(low_[path_.back().vertex], low_[vertex]);
    }
    if (low_[vertex] != order_[vertex]) return;
    uint32_t member = kNone;
    do {
      member = stack_.back();
      stack_.pop_back();
      component_[member] = count_;
    } while (member != vertex);
    ++count_;
  }

  const WaitsForGraph& graph_;
  std::vector<uint32_t> order_;
  std::vector<uint32_t> low_;
  std::vector<uint32_t> component_;
  std::vector<uint32_t> stack_;
  std::vector<Step> path_;
  uint32_t clock_ = 0;
  uint32_t count_ = 0;
};

}  // namespace

WaitsForGraph BuildWaitsFor(const Table& table) {
  WaitsForGraph graph;
  graph.operations_of.resize(table.world());
  graph.outdated.resize(table.world());
  Marks marks(table.world());
  const std::vector<Started> started = StartedFlights(table);
  for (size_t begin = 0, end = 0; begin < started.size(); begin = end) {
    const auto index = static_cast<uint32_t>(graph.operations.size());
    Operation operation{.comm = started[begin].comm,
                        .kind = started[begin].kind,
                        .sequence = started[begin].sequence,
                        .youngest_ns = started[begin].flight->age_ns,
                        .starters = {},
                        .absent = {},
                        .left = {}};
    for (end = begin; end < started.size() && started[end].key() == started[begin].key(); ++end) {
      const Started& entry = started[end];
      if (!operation.starters.empty() && operation.starters.back().rank == entry.rank) continue;
      operation.starters.push_back({entry.rank, entry.flight});
      operation.oldest_ns = std::max(operation.oldest_ns, entry.flight->age_ns);
      operation.youngest_ns = std::min(operation.youngest_ns, entry.flight->age_ns);
    }
    if (!FindAbsent(table, started[begin].pair, marks, operation)) {
      for (const Operation::Starter& starter : operation.starters) {
        graph.outdated[starter.rank] = true;
      }
      continue;
    }
    for (const Operation::Starter& starter : operation.starters) {
      graph.operations_of[starter.rank].push_back(index);
    }
    graph.operations.push_back(std::move(operation));
  }
  return graph;
}

std::vector<std::vector<uint32_t>> RootsOf(const WaitsForGraph& graph, uint64_t min_age_ns) {
  Components components(graph);
  for (uint32_t i = 0; i < graph.operations.size(); ++i) {
    if (graph.operations[i].oldest_ns >= min_age_ns) components.Visit(i);
  }
  return components.Sinks();
}

}  // namespace holdfast::detect
