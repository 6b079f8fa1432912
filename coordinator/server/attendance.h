#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "base/mutex.h"
#include "coordinator/state/events.h"

namespace holdfast::coord {

/// The attached agents and the newest incarnation of each job. Only telemetry of these agents and
/// incarnations is accepted. The applier updates this object, and calls that bypass the applier
/// read it. Threads: any.
class Attendance {
 public:
  struct Running {
    Incarnation incarnation;
    uint32_t world = 0;
  };

  /// Starts from the records that State was loaded from; no agent is attached.
  void Reset(const Records& records);
  /// Call after State::Apply(event), with the effects of that call.
  void Update(const Event& event, std::span<const Effect> effects);
  /// Returns the number of calls of Reset(). After each, the agents must attach again.
  uint64_t loads() const;

  bool IsAttached(const std::string& node, uint64_t agent_start) const;
  size_t agents() const;
  /// Returns nullopt for a job that never started.
  std::optional<Running> RunningOf(const std::string& job) const;

 private:
  void Record(const LineageRecord& lineage) HOLDFAST_REQUIRES(mutex_);

  mutable Mutex mutex_;
  uint64_t loads_ HOLDFAST_GUARDED_BY(mutex_) = 0;
  /// By node: the agent_start of the attached agent.
  std::map<std::string, uint64_t> agents_ HOLDFAST_GUARDED_BY(mutex_);
  std::map<std::string, Running> jobs_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast::coord
