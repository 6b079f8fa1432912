#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "agent/pipeline/coordinator_link.h"
#include "agent/pipeline/rank_registry.h"
#include "agent/pipeline/shard_preparer.h"
#include "base/clock.h"

namespace holdfast::agent {

/// What a departure reached for a job.
struct DepartedJob {
  std::optional<VersionId> goal;    // newest in memory when the agent announced its departure
  std::optional<VersionId> memory;  // newest committed in memory
  std::optional<VersionId> disk;    // newest committed on disk
  std::optional<VersionId> shared;  // newest committed at tier remote
  bool reached() const { return disk >= goal; }
  bool copied() const { return shared >= disk; }
};

/// The last work of an agent before it ends: brings the newest version of each job to the disks.
///
/// Saves that have begun are sealed first. Then the agent announces its departure, and the
/// coordinator names one version that all ranks of the job write (JobState::flush). The departure
/// is over when that version is committed on disk, and this node's copies to shared tiers have
/// ended. A departure does not wait for what cannot succeed: it ends when nothing has changed for a
/// second and no version is being written, or when several versions could not be written. Without a
/// coordinator, only this node's own writes count.
class Departure {
 public:
  /// All outlive the departure.
  struct Parts {
    RankRegistry& ranks;
    ShardPreparer& preparer;  // copies the shards to shared tiers
    CoordinatorLink& link;
    Clock& clock;
    bool shared_tiers = false;  // the node reaches a shared tier
  };
  explicit Departure(const Parts& parts) : parts_(parts) {}

  /// Blocks for at most `grace_ms`, or until `interrupted` returns true. Returns what was reached,
  /// by job.
  std::map<std::string, DepartedJob> Run(int64_t grace_ms,
                                         const std::function<bool()>& interrupted);

 private:
  using Interrupted = std::function<bool()>;
  void AwaitSaves(Clock::TimePoint deadline, const Interrupted& interrupted);
  /// Returns false when the time is over or the agent must end.
  bool Pause(Clock::TimePoint deadline, const Interrupted& interrupted);

  const Parts parts_;
};

}  // namespace holdfast::agent
