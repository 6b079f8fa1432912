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
  bool parity = false;  // a parity shard
};

/// Decides which versions one rank writes to disk. Only a version that every rank writes can be
/// committed. Therefore the choice must not depend on the speed of this rank's disk. The chosen
/// version has the first step at or after the coordinator's target that is divisible by
/// `every_steps`. The coordinator moves the target on once the chosen version is committed at disk
/// or can never be. Versions saved in the meantime stay in memory only: when the disks are slower
/// than the steps, versions are skipped, and all ranks skip the same ones. A rank that receives a
/// target late still has the version in memory, because a slot is freed only after a newer commit.
/// Parity is built independently and may be ready only after its version is committed at disk; then
/// it is written late. Thread-compatible.
class DiskPace {
 public:
  /// `every_steps` 0 means 1: as often as the disks keep up.
  explicit DiskPace(uint64_t every_steps) : every_(every_steps == 0 ? 1 : every_steps) {}

  /// Returns the slot to write now, if any. Called when the rank's writer is idle. `job` may be
  /// null.
  std::optional<uint32_t> Choose(std::span<const DiskCandidate> candidates, const JobState* job);

  /// Records that the trainer or the coordinator gave up the chosen version: another version may be
  /// chosen for the same target.
  void GiveUp(VersionId version);

  /// Returns whether an idle writer would write this version.
  bool IsEligible(VersionId version, const JobState* job) const;
  /// Returns whether the step is divisible by `every_steps`.
  bool IsOnInterval(VersionId version) const { return version.step.value % every_ == 0; }

 private:
  /// Returns whether this is parity of the version that is already committed at disk.
  static bool IsLateParity(const DiskCandidate& candidate, const JobState* job);

  uint64_t every_;
  VersionId started_;   // newest version chosen so far
  VersionId previous_;  // the one before it
};

}  // namespace holdfast::agent
