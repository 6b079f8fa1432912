#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "agent/api/collective_table.h"

// What lies in the shared memory of one rank: a control block and its slots. Both sides map it; the
// agent trusts nothing in it: progress only says how far a copy has come, all bytes are checksummed
// by the agent before they count, a phase only says what may wait a little, and collective records
// are judged by who reads them.

namespace holdfast::agent {

inline constexpr uint64_t kControlBytes = 1ULL << 20;
inline constexpr uint64_t kSlotAlign = 2ULL << 20;
inline constexpr uint32_t kSlotsMax = 64;
inline constexpr uint64_t kSlotBytesMax = uint64_t{1} << 46;

/// One slot's progress: image bytes [0, copied) are final. Written by the trainer, followed by the
/// agent. `wake` counts changes and is a futex word (shared between processes): the writer
/// increments it and wakes.
struct alignas(64) SlotProgress {
  std::atomic<uint64_t> copied;
  std::atomic<uint32_t> wake;
};

/// What a trainer can say that it is doing. The numbers are stable: holdfast.h has the same.
enum class Phase : uint32_t {
  kCollective = 1,
  kInit = 2,
  kCompile = 3,
  kCheckpoint = 4,
  kEvaluation = 5,
};
inline constexpr uint32_t kPhasesMax = 16;

/// One phase of a rank, a hint. Written by the trainer, read by the agent when it would send; the
/// agent sets `open` to 0 before it welcomes a trainer.
struct alignas(64) PhaseHint {
  std::atomic<uint32_t> open;   // begun and not ended, over all threads
  std::atomic<uint64_t> begun;  // in all
};

struct SegmentControl {
  SlotProgress slots[kSlotsMax];
  PhaseHint phases[kPhasesMax];  // by Phase
  alignas(4096) CollectiveTable collectives;

  PhaseHint& phase(Phase which) { return phases[static_cast<uint32_t>(which)]; }
};
static_assert(sizeof(SegmentControl) <= kControlBytes);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

/// Publishes progress and wakes the agent. Trainer side.
void PublishProgress(SlotProgress& progress, uint64_t copied);
/// Waits until `copied` exceeds `seen` or `timeout_ms` passed (< 0: no limit); returns the value
/// seen last, never less than `seen`. Agent side: the value comes from the trainer, so bound it by
/// the image's length; a trainer that scribbles here can neither hang nor spin the caller.
uint64_t AwaitProgress(SlotProgress& progress, uint64_t seen, int timeout_ms);

constexpr uint64_t RoundUp(uint64_t value, uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace holdfast::agent
