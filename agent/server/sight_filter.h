#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "agent/pipeline/watched_ranks.h"

namespace holdfast::agent {

/// Filters what is reported of the ranks: time during which this agent itself was stopped does not
/// count, since the whole machine may have been; and a dead rank is reported a few times only.
/// Thread-compatible.
class SightFilter {
 public:
  /// So often a dead rank is told: enough for any verdict.
  static constexpr uint32_t kDeadTold = 50;

  /// Looks happen every `look_every_ns`; one that is late by more than `late_ns` was held up.
  SightFilter(uint64_t look_every_ns, uint64_t late_ns)
      : look_every_ns_(look_every_ns), late_ns_(late_ns) {}

  /// Of one look; `now_ns` is CLOCK_MONOTONIC.
  std::vector<RankSight> Take(std::vector<RankSight> sights, uint64_t now_ns);
  /// The coordinator has them.
  void Told(const std::vector<RankSight>& sights);

 private:
  struct Gap {
    uint64_t end_ns;
    uint64_t length_ns;
  };
  struct Dead {
    Incarnation incarnation;
    ProcessName process;
    uint32_t told = 0;
  };
  /// The part of `age_ns` in which this agent ran.
  uint64_t Lived(uint64_t age_ns, uint64_t now_ns) const;
  bool IsKnownDead(const RankSight& sight) const;

  const uint64_t look_every_ns_;
  const uint64_t late_ns_;
  uint64_t looked_ns_ = 0;
  std::deque<Gap> gaps_;
  std::map<std::pair<std::string, Rank>, Dead> dead_;
};

}  // namespace holdfast::agent
