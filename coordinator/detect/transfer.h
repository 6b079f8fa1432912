#pragma once

#include <map>
#include <optional>
#include <vector>

#include "coordinator/detect/gather.h"
#include "coordinator/detect/robust.h"

// Which transfers are slow. The last member of an operation waits for nobody: the least duration of
// all members is the transfer's.

namespace holdfast::detect {

/// The transfers of one communicator, each kind of operation against its own past.
class Transfers {
 public:
  explicit Transfers(const DetectorOptions& options) : options_(options) {}

  /// `iteration_ns`: the usual time of an iteration, 0 when not known.
  void Add(const Gathered& operation, double iteration_ns);

  struct Slow {
    Func func = Func::kOther;
    uint64_t bytes = 0;
    double usual_ns = 0;  // for as many bytes
    double now_ns = 0;
    double z = 0;
    double lasting_s = 0;
  };
  /// The kind of operation that is most clearly slower than it was, for `least` at least.
  std::optional<Slow> slow(Clock::Duration least) const;
  /// The longest slowness that ended by itself.
  Clock::Duration healed() const { return healed_; }
  /// Some kind took by half longer in the last stretch: who is late meanwhile may be so for that.
  bool hot() const {
    return std::any_of(kinds_.begin(), kinds_.end(), [](const Kind& kind) {
      return kind.hot > 0 && kind.newest > 1.5 * kind.centre.median;
    });
  }

 private:
  /// A stretch is some seconds and an iteration at least: congestion that is over sooner is usual.
  struct Kind {
    uint32_t key = 0;
    Func func = Func::kOther;
    uint64_t bytes = 0;
    Recent<double, 64> costs;    // ns a byte, of this stretch
    Clock::TimePoint begin;      // of this stretch
    Clock::TimePoint hot_since;  // of the first slow stretch in a row
    Recent<double, 32> usual;    // of the stretches that were not slow
    Recent<double, 4> now;       // of the last ones
    uint32_t hot = 0;            // slow stretches in a row
    double z = 0;                // of the last one
    double newest = 0;           // the last one
    Centre centre;
    uint32_t seen = 0;
    Clock::TimePoint last;
  };
  void EndStretch(Kind& kind);

  DetectorOptions options_;
  std::vector<Kind> kinds_;
  Clock::Duration healed_{0};
};

/// What the members' transfers to each other cost: the delay matrix, as far as it is populated.
class DelayMatrix {
 public:
  explicit DelayMatrix(size_t cells_max) : cells_max_(cells_max) {}

  void Add(const PeerSums& sums);
  /// Operations told of by the connection that told of most.
  uint64_t operations() const { return operations_; }

  struct Blame {
    std::optional<Rank> rank;
    bool sends = false;  // the rank's transmit side, else its receive side
    Edge edge;           // the slowest connection
    double ratio = 0;    // its cost a byte beyond the usual connection's
    double z = 0;
    uint32_t hot = 0;  // of the rank's connections in that direction
    uint32_t populated = 0;
    uint32_t all_hot = 0;  // of all connections
    uint32_t of = 0;
    bool widespread = false;  // those have no end in common: congestion, and nobody's fault
  };
  /// The connection, or the rank whose connections are slow for the most part; nothing when no
  /// connection stands out.
  std::optional<Blame> Find(const DetectorOptions& options) const;

 private:
  /// A few long waits are the scheduler's, not the connection's: the cost is the median of what
  /// each message told.
  struct Cell {
    Recent<float, 32> ns_a_byte;
    uint64_t operations = 0;
  };

  const size_t cells_max_;
  uint64_t operations_ = 0;
  std::map<std::pair<uint32_t, uint32_t>, Cell> cells_;  // by sender and receiver
};

}  // namespace holdfast::detect
