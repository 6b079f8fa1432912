#pragma once

#include <map>
#include <optional>
#include <vector>

#include "coordinator/detect/gather.h"
#include "coordinator/detect/robust.h"

// Finds slow transfers. The last member to join an operation does not wait for another, so the
// shortest duration of all members is that of the transfer.

namespace holdfast::detect {

/// Compares the transfers of one communicator with their own past, for each kind of operation.
class TransferMonitor {
 public:
  explicit TransferMonitor(const DetectorOptions& options) : options_(options) {}

  /// `iteration_ns`: the usual duration of an iteration, 0 if unknown.
  void Add(const GatheredOperation& operation, double iteration_ns);

  struct Slow {
    CollectiveKind kind = CollectiveKind::kOther;
    uint64_t bytes = 0;
    double usual_ns = 0;  // for the same number of bytes
    double now_ns = 0;
    double z = 0;
    double lasting_s = 0;
  };
  /// Returns the kind of operation with the clearest slowdown (largest z) that has lasted at least
  /// `min_duration`.
  std::optional<Slow> slow(Clock::Duration min_duration) const;
  /// Whether some kind was slow in the last stretch.
  bool slowing() const {
    return std::any_of(series_.begin(), series_.end(),
                       [](const Series& series) { return series.slow_stretches > 0; });
  }
  /// The slowdowns that have ended, and the longest of them.
  uint32_t ended() const { return ended_; }
  Clock::Duration longest_ended() const { return longest_ended_; }
  /// Whether some kind took more than 1.5 times as long in the last stretch. Slow transfers can
  /// make ranks look late.
  bool much_slower() const {
    return std::any_of(series_.begin(), series_.end(), [](const Series& series) {
      return series.slow_stretches > 0 && series.newest > 1.5 * series.centre.median;
    });
  }

 private:
  /// Operations of one kind, algorithm, protocol and power of two of the size. A stretch lasts some
  /// seconds and at least one iteration. Shorter congestion is normal.
  struct Series {
    uint32_t key = 0;
    CollectiveKind kind = CollectiveKind::kOther;
    uint64_t bytes = 0;
    Recent<double, 64> costs;     // ns per byte, in this stretch
    Clock::TimePoint begin;       // of this stretch
    Clock::TimePoint slow_since;  // begin of the first of the consecutive slow stretches
    Recent<double, 32> usual;     // costs of the stretches that were not slow
    Recent<double, 4> now;        // costs of the last stretches
    uint32_t slow_stretches = 0;  // consecutive, up to the last one
    double z = 0;                 // of the last stretch
    double newest = 0;            // cost of the last stretch
    Centre centre;
    uint32_t seen = 0;
    Clock::TimePoint last;
  };
  void EndStretch(Series& series);

  DetectorOptions options_;
  std::vector<Series> series_;
  uint32_t ended_ = 0;
  Clock::Duration longest_ended_{0};
};

/// The delay matrix: the cost of the members' transfers to each other, for the connections
/// measured.
class DelayMatrix {
 public:
  explicit DelayMatrix(size_t cells_max) : cells_max_(cells_max) {}

  void Add(const RankTransfers& transfers);
  void Clear();
  /// The largest number of operations measured on one connection.
  uint64_t operations() const { return operations_; }

  struct Blame {
    std::optional<Rank> rank;
    bool sends = false;  // the rank's transmit side, else its receive side
    Edge edge;           // the slowest connection
    double worst = 0;    // its cost
    double ratio = 0;    // its cost divided by the usual connection's
    double z = 0;
    uint32_t hot = 0;         // slow connections of the rank in that direction
    uint32_t populated = 0;   // measured connections of the rank in that direction
    uint32_t of = 0;          // measured connections in the whole matrix
    bool widespread = false;  // the slow ones have no common end: congestion, no rank is at fault
    std::vector<Edge> hot_edges;  // the slow connections in the whole matrix
    bool changed = false;         // found by FindChanged: there is no usual connection and no z
  };
  /// The cost of one connection.
  struct Cost {
    std::pair<uint32_t, uint32_t> edge;  // sender and receiver
    double value = 0;                    // ns per byte
  };
  /// Returns the costs of the connections with enough messages.
  std::vector<Cost> Costs() const;
  /// Returns the slowest connection, and the rank if most of its connections are slow. Returns
  /// nullopt if no connection stands out.
  static std::optional<Blame> Find(const std::vector<Cost>& costs, const DetectorOptions& options);
  std::optional<Blame> Find(const DetectorOptions& options) const { return Find(Costs(), options); }
  /// Finds what the connections that cost at least `factor` times as much as before have in common.
  /// `changes`: costs as multiples of those before. For so few connections that half of them may be
  /// those of one rank. Returns nullopt if none or all of them cost more.
  static std::optional<Blame> FindChanged(const std::vector<Cost>& changes, double factor);

 private:
  /// One connection. Its cost is the median over the messages, since a few long waits are caused by
  /// the scheduler and not by the connection.
  struct Cell {
    Recent<float, 32> ns_per_byte;
    uint64_t operations = 0;
  };

  const size_t cells_max_;
  uint64_t operations_ = 0;
  std::map<std::pair<uint32_t, uint32_t>, Cell> cells_;  // by sender and receiver
};

}  // namespace holdfast::detect
