#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "coordinator/view/health.h"

namespace holdfast::ui {

/// What a rank's agent reported last, and what the coordinator knows about its parity.
struct RankReading {
  uint32_t rank = 0;
  std::string node;
  uint64_t step = 0;
  int64_t stall_ms = 0;   // since the step advanced
  int64_t silent_ms = 0;  // since the process reported
  int64_t wait_us = -1;   // mean time blocked in an operation; -1: not known
  // Indices in the communicators of these roles; -1: not known.
  int32_t data = -1;
  int32_t tensor = -1;
  int32_t pipeline = -1;
  // How far the parity of the rank's group is behind the rank; -1: the job has no parity groups.
  int64_t parity_lag_versions = -1;
  int64_t parity_lag_ms = -1;
};

/// What the page shows, at one time.
struct UiInput {
  bool loaded = false;  // false: the coordinator has no state now, and the rest is empty
  view::ClusterSnapshot cluster;
  coordinator::ListIncidentsReply incidents;
  std::map<std::string, std::vector<RankReading>> ranks;  // by job, sorted by rank
};

/// Where the page's data comes from. Threads: any.
class UiSource {
 public:
  virtual ~UiSource() = default;
  /// Waits at most a few seconds.
  virtual UiInput Collect() = 0;
  /// What the loss of the node would cost. Unavailable: no answer in time.
  virtual Result<coordinator::WhatIfLostReply> Impact(const std::string& node) = 0;
};

}  // namespace holdfast::ui
