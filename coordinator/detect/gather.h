#pragma once

#include <optional>
#include <vector>

#include "coordinator/detect/table.h"

// Brings together what the members of a communicator say of the same operation.

namespace holdfast::detect {

/// One rank's times in one operation, on the rank's own clock.
struct Sample {
  uint64_t start_ns = 0;
  uint64_t stop_ns = 0;  // 0: nothing was heard from the rank
  uint64_t blocked_ns = 0;
  uint64_t moved_bytes = 0;
  bool present() const { return stop_ns != 0; }
  uint64_t duration_ns() const { return stop_ns - start_ns; }
};

struct Gathered {
  Func func = Func::kOther;
  uint8_t algo = 0;
  uint8_t proto = 0;
  uint64_t seq = 0;
  uint64_t bytes = 0;   // the most of any member
  uint32_t count = 0;   // samples present
  uint32_t opener = 0;  // position of who told of it first
  Clock::TimePoint since;
  std::vector<Sample> samples;  // by position
};

/// The open operations of one communicator. What comes faster than it can be gathered is left out,
/// and no rank opens more than half of what can be open.
class Gatherer {
 public:
  explicit Gatherer(uint32_t members);

  /// Adds one rank's times.
  void Add(const Collective& record, uint32_t position, Clock::TimePoint now);
  /// The oldest operation, when all its members told of it, or at least half of them and it has
  /// waited for the others since before `before`. In order: a later one waits for it.
  std::optional<Gathered> Take(Clock::TimePoint before);
  bool empty() const { return open_.empty(); }

 private:
  Gathered* Find(const Collective& record);
  Gathered* Open(const Collective& record, uint32_t position, Clock::TimePoint now);

  const uint32_t members_;
  const size_t open_max_;
  std::vector<Gathered> open_;                   // oldest first
  std::array<uint64_t, kFuncs> closed_below_{};  // per func: later words on these are too late
};

}  // namespace holdfast::detect
