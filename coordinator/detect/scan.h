#pragma once

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "coordinator/detect/watch.h"

// Compares all connections with each other and with their own past, from time to time. A job with
// only sends and receives has no operation in which all ranks take part, operations that are
// minutes apart have no past, and a connection may be slow from the start.

namespace holdfast::detect {

class ConnectionScan {
 public:
  explicit ConnectionScan(const DetectorOptions& options);

  /// Adds what a rank sent to a peer.
  void Add(const RankTransfers& transfers, const CommClass& of, uint32_t world);
  struct Signals {
    Clock::TimePoint last_operation;  // when the last record of an operation arrived
    bool longer = false;     // iterations are longer than before: the next comparison need not wait
    bool congested = false;  // congestion was seen recently: a slow connection must last longer
  };
  /// Ends a comparison that has measured enough.
  void Advance(Clock::TimePoint now, const Signals& signals);
  /// Whether connections should be measured now.
  bool measures() const { return measures_; }

  struct Slow {
    DelayMatrix::Blame blame;
    bool past = false;  // slower than before, else than the other connections
    uint64_t operations = 0;
    Clock::Duration lasting{0};
  };
  /// The connections that have been found for long enough.
  const std::vector<Slow>& slow() const { return slow_; }
  /// When connections without a common end were last found slow, or a slow one was no longer.
  Clock::TimePoint congested_at() const { return congested_at_; }
  /// Compares costs of connections of the class with their past; see DelayMatrix::FindChanged.
  std::optional<DelayMatrix::Blame> FindChanged(const CommClass& of,
                                                const std::vector<DelayMatrix::Cost>& costs) const;

 private:
  using Key = std::pair<uint32_t, uint32_t>;  // sender and receiver
  /// The connections of the communicators of one class.
  struct Group {
    explicit Group(size_t cells_max) : matrix(cells_max) {}
    DelayMatrix matrix;                      // of this comparison
    std::map<Key, Recent<double, 8>> usual;  // costs in earlier comparisons that found nothing
    /// The slow connections of the previous comparison, each with the begin of the first of the
    /// consecutive comparisons that found it.
    std::map<Key, Clock::TimePoint> hot;
  };
  bool HasEnough(Clock::TimePoint now, Clock::TimePoint last_operation) const;
  uint64_t OperationsNeeded(Clock::TimePoint now) const;
  std::optional<Slow> Compare(const Group& group) const;
  static std::vector<DelayMatrix::Cost> ChangesOf(const Group& group,
                                                  const std::vector<DelayMatrix::Cost>& costs);
  static bool IsPartOf(const DelayMatrix::Blame& blame, const Edge& edge);
  bool End(Clock::TimePoint now, Clock::Duration lasting);

  const DetectorOptions options_;
  std::map<CommClass, Group> groups_;
  Clock::TimePoint begin_;  // of this comparison, or of the next one
  bool measures_ = false;
  bool longer_ = false;
  std::vector<Slow> slow_;
  Clock::TimePoint congested_at_ = Clock::TimePoint::min();
};

}  // namespace holdfast::detect
