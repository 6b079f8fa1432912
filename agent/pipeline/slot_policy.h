#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "agent/arena/arena.h"
#include "agent/pipeline/coordinator_link.h"

namespace holdfast::agent {

/// What the policy needs to know about one slot.
struct SlotView {
  uint32_t slot = 0;
  SlotState state = SlotState::kFree;
  VersionId version;
  bool in_use = false;      // being written to disk, read by a restore, checked or sent
  bool held = false;        // for a restore that is not decided yet, or its parity is being made
  bool other_life = false;  // of the coordinator's store: this one counts it only when adopted
  bool disk_done = false;   // it was written to disk, as far as that was possible
};

/// The sealed slots that may be freed now, in the order in which they should go: a floor that never
/// opens. `job` is the coordinator's latest word, null when there is none yet (then nothing is
/// freed). A slot that is in use or held never is. Otherwise it may go when
///   - it is of another life of the coordinator's store, was written to disk, and this life has not
///     adopted its version as the newest, or
///   - its version is aborted, or
///   - a newer version is committed at memory and, where a parity group protects this one, a newer
///     one at peer; the version that the current incarnation restores
///     from stays until that incarnation has committed one of its own, or
///   - it belongs to an older incarnation and is neither the newest committed version nor the
///     restore version.
/// Pure.
std::vector<uint32_t> FreeableSlots(std::span<const SlotView> slots, const JobState* job);

}  // namespace holdfast::agent
