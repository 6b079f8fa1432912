#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "agent/api/collective_table.h"
#include "base/clock.h"

// The layout of one rank's shared memory: a control block and slots. Trainer and agent both map it.
// The agent trusts nothing in it. A progress counter only shows how far a copy has come: the agent
// computes the checksums of all bytes before they count. A phase is only a hint that other work may
// wait a little. The reader of collective records validates them.

namespace holdfast::agent {

inline constexpr uint64_t kControlBytes = 1ULL << 20;
inline constexpr uint64_t kSlotAlign = 2ULL << 20;
inline constexpr uint32_t kSlotsMax = 64;

/// One slot's progress: image bytes [0, copied) are final. The trainer writes the counters, and the
/// agent waits on them. `wake` counts changes and is a futex word (shared between processes): the
/// writer increments it and wakes the waiters.
struct alignas(64) SlotProgress {
  std::atomic<uint64_t> copied;
  std::atomic<uint32_t> wake;
};

/// The phases that a trainer can report. The values are stable and equal those in holdfast.h.
enum class Phase : uint32_t {
  kCollective = 1,
  kInit = 2,
  kCompile = 3,
  kCheckpoint = 4,
  kEvaluation = 5,
};
inline constexpr uint32_t kPhasesMax = 16;

/// One phase of a rank; a hint. The trainer writes it and the agent reads it before it sends data.
/// The agent sets `open` to 0 before it welcomes a trainer.
struct alignas(64) PhaseHint {
  std::atomic<uint32_t> open;   // number begun and not ended, over all threads
  std::atomic<uint64_t> begun;  // total number begun
};

struct SegmentControl {
  SlotProgress slots[kSlotsMax];
  PhaseHint phases[kPhasesMax];  // by Phase
  alignas(4096) CollectiveTable collectives;

  PhaseHint& phase(Phase which) { return phases[static_cast<uint32_t>(which)]; }
};
static_assert(sizeof(SegmentControl) <= kControlBytes);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

/// Publishes progress and wakes the agent. Called by the trainer.
void PublishProgress(SlotProgress& progress, uint64_t copied);
/// Blocks until `copied` exceeds `seen` or `timeout_ms` have passed (< 0: no limit). Returns the
/// last value read, never less than `seen`. Called by the agent. The value comes from the trainer,
/// so the caller bounds it by the image's length. A trainer that writes garbage here can neither
/// hang the caller nor make it spin.
uint64_t AwaitProgress(SlotProgress& progress, uint64_t seen, int timeout_ms, Clock& clock);

constexpr uint64_t RoundUp(uint64_t value, uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace holdfast::agent
