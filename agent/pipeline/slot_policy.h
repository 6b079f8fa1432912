#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "agent/arena/arena.h"
#include "agent/pipeline/coordinator_link.h"

namespace holdfast::agent {

/// The state of one slot, as the policy needs it.
struct SlotInfo {
  uint32_t slot = 0;
  SlotState state = SlotState::kFree;
  VersionId version;
  bool in_use = false;      // being written to disk, restored, verified or sent
  bool held = false;        // for an undecided restore, or to build parity
  bool other_life = false;  // sealed in another life of the coordinator's store
  bool disk_done = false;   // the write to disk has ended, successfully or not
  bool parity = false;      // a parity shard
};

/// Returns the sealed slots that may be freed now, in the order in which to free them. Enforces the
/// retention floor in memory. `job` is the coordinator's latest job state; without one (null) no
/// slot may be freed. A slot that is in use or held may never be freed. Any other slot may be freed
/// when
///   - it is of another life of the coordinator's store, its write to disk has ended, and its
///     version is neither the newest one committed in this life (at memory or peer) nor the restore
///     version, or
///   - its version is aborted, or
///   - it is a parity shard of the current incarnation, is older than the peer target, and is not
///     the newest version committed at peer, or
///   - a newer version is committed at memory, and also at peer if this version is the newest one
///     committed there; the version that the current incarnation restores stays until that
///     incarnation has committed a version, or
///   - it belongs to an older incarnation and is neither the newest committed version nor the
///     restore version.
/// Pure.
std::vector<uint32_t> FreeableSlots(std::span<const SlotInfo> slots, const JobState* job);

}  // namespace holdfast::agent
