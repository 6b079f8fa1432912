#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "agent/pipeline/coordinator_link.h"

namespace holdfast::agent {

/// A version in memory, sealed or still being copied, that has not been written to disk.
struct DiskCandidate {
  uint32_t slot = 0;
  VersionId version;
};

/// Decides which versions one rank writes to disk. Only a version that every rank writes can be
/// committed, so the choice must not depend on how fast this rank's disk happens to be: it is the
/// first step at or after the coordinator's target that is divisible by k. The target moves on when
/// the version it led to is committed at disk or will not be; what is saved meanwhile stays in
/// memory, so disks that are slower than the steps are followed, each version by all ranks. A rank
/// that hears of a target late still has that step: a slot is freed only after a newer commit.
/// Parity is made beside all this, and may be ready only when the version is committed: then it
/// follows.
/// Thread-compatible.
class DiskPace {
 public:
  /// k = `every_steps`; 0 is 1: as fast as the disks follow.
  explicit DiskPace(uint64_t every_steps) : every_(every_steps == 0 ? 1 : every_steps) {}

  /// The slot to write now, if any. Called when the rank's writer is idle. `job` may be null.
  std::optional<uint32_t> Choose(std::span<const DiskCandidate> candidates, const JobState* job);

  /// The chosen version was given up by its trainer or the coordinator: the target is open again.
  void GiveUp(VersionId version);

  /// Would this version be written if the writer were idle?
  bool Due(VersionId version, const JobState* job) const;
  /// Is it one of every k steps?
  bool Wanted(VersionId version) const { return version.step.value % every_ == 0; }

 private:
  /// Parity of the version that the disks have committed.
  static bool Lacks(VersionId version, const JobState* job);

  uint64_t every_;
  VersionId started_;   // newest version chosen so far
  VersionId previous_;  // the one before it
};

}  // namespace holdfast::agent
