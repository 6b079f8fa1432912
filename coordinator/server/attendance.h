#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "coordinator/state/events.h"
#include "storage/base/mutex.h"

namespace holdfast::coord {

/// Who may tell of what is observed: the agents that are attached, and the incarnations that run.
/// Written by the applier, read by calls that do not pass through it. Threads: any.
class Attendance {
 public:
  struct Running {
    Incarnation incarnation;
    uint32_t world = 0;
  };

  /// What State was loaded from: no agent is attached.
  void Reset(const Records& records);
  /// After State::Apply(event), with its effects.
  void See(const Event& event, std::span<const Effect> effects);

  bool IsAttached(const std::string& node, uint64_t agent_start) const;
  /// Nothing for a job that never started.
  std::optional<Running> RunningOf(const std::string& job) const;

 private:
  void Note(const LineageRecord& lineage) HOLDFAST_REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::map<std::string, uint64_t> agents_ HOLDFAST_GUARDED_BY(mutex_);  // attached: their start
  std::map<std::string, Running> jobs_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast::coord
