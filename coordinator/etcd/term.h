#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

namespace holdfast::coord {

/// Time since the machine started. It runs on while the process is stopped and while the machine
/// sleeps, and no change of the wall clock moves it.
std::chrono::nanoseconds SinceBoot();

/// The time in which one coordinator leads. The leader's key has `lease`, so the key is erased when
/// the lease ends; every write compares the revision that made the key. Threads: any.
class LeaderTerm {
 public:
  LeaderTerm(int64_t lease, int64_t revision, std::chrono::nanoseconds until)
      : lease_(lease), revision_(revision), until_(until.count()) {}

  int64_t lease() const { return lease_; }
  /// Returns the revision that made the leader's key.
  int64_t revision() const { return revision_; }
  void Extend(std::chrono::nanoseconds until) { until_.store(until.count()); }
  void End() { until_.store(0); }
  /// Whether the lease certainly has not ended.
  bool Valid() const { return SinceBoot().count() < until_.load(); }

 private:
  const int64_t lease_;
  const int64_t revision_;
  std::atomic<int64_t> until_;
};

}  // namespace holdfast::coord
