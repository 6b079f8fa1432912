#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "agent/pipeline/watched_ranks.h"

namespace holdfast::agent {

/// Filters observations of ranks before they are sent. Subtracts the time in which this agent was
/// stopped, since the whole machine may have been stopped then. Drops a dead rank after
/// kDeadReports reports. Thread-compatible.
class ObservationFilter {
 public:
  /// How often a dead rank is reported: enough for any verdict.
  static constexpr uint32_t kDeadReports = 50;

  /// Take() is called every `interval_ns`. If a call is late by more than `late_ns`, the agent was
  /// stopped.
  ObservationFilter(uint64_t interval_ns, uint64_t late_ns)
      : interval_ns_(interval_ns), late_ns_(late_ns) {}

  /// Returns the filtered observations of one poll; `now_ns` is CLOCK_MONOTONIC.
  std::vector<ObservedRank> Take(std::vector<ObservedRank> observations, uint64_t now_ns);
  /// Records that the coordinator has accepted `observations`.
  void RecordSent(const std::vector<ObservedRank>& observations);

 private:
  struct Gap {
    uint64_t end_ns;
    uint64_t length_ns;
  };
  struct Dead {
    Incarnation incarnation;
    ProcessName process;
    uint32_t reports = 0;
  };
  /// Returns the part of the last `age_ns` in which this agent ran.
  uint64_t RunningPart(uint64_t age_ns, uint64_t now_ns) const;
  bool IsKnownDead(const ObservedRank& observed) const;

  const uint64_t interval_ns_;
  const uint64_t late_ns_;
  uint64_t polled_ns_ = 0;  // time of the last Take()
  std::deque<Gap> gaps_;
  std::map<std::pair<std::string, Rank>, Dead> dead_;
};

}  // namespace holdfast::agent
