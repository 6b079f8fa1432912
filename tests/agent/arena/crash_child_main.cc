#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "tests/agent/arena/arena_fixture.h"
#include "tests/agent/arena/crash_events.h"

// An agent reduced to its arena: opens it, then leases, fills, seals, abandons, frees, reserves and
// releases at random until it is killed. It reports on stdout what it is about to do and what it
// has done.

namespace holdfast::agent {
namespace {

void Report(CrashEvent::Kind kind, uint32_t rank, uint32_t slot, uint64_t step) {
  CrashEvent event{.kind = kind, .rank = rank, .slot = slot, .step = step};
  if (::write(1, &event, sizeof(event)) != sizeof(event)) ::_exit(3);
}

bool Save(Segment& segment, Random& random, uint64_t step) {
  uint32_t rank = segment.owner().rank.value;
  uint64_t image_bytes = 1 + random.Below(segment.slot_bytes());
  auto slot = segment.Lease(Version(1, step), 4, image_bytes);
  if (!slot) return slot.error().code() == ErrorCode::kResourceExhausted;
  auto image = segment.slot(*slot).first(image_bytes);
  FillImage(image, Version(1, step), segment.owner().rank);
  if (random.OneIn(5)) return segment.Abandon(*slot).ok();
  ShardSeal seal = SealOf(image, segment.owner(), Version(1, step), 4);
  if (!segment.Seal(*slot, seal).ok()) return false;
  Report(CrashEvent::kSealed, rank, *slot, step);
  return true;
}

bool FreeOne(Segment& segment, Random& random) {
  uint32_t rank = segment.owner().rank.value;
  auto slot = static_cast<uint32_t>(random.Below(segment.slot_count()));
  if (segment.record(slot).state != SlotState::kSealed) return true;
  Report(CrashEvent::kFreeing, rank, slot, 0);
  if (!segment.Free(slot).ok()) return false;
  Report(CrashEvent::kFreed, rank, slot, 0);
  return true;
}

int Run(const char* run_dir, const char* keeper, uint64_t seed, uint64_t first_step) {
  auto arena = Arena::Open({.budget_bytes = 64 * kMiB, .run_dir = run_dir, .keeper_binary = keeper},
                           Clock::Real());
  if (!arena) return 4;
  Random random(seed);
  for (uint64_t step = first_step;; ++step) {
    // Rank 2's segment is reserved and released; those of ranks 0 and 1 stay.
    auto rank = static_cast<uint32_t>(random.Below(3));
    SegmentOwner owner{.job = "job", .rank = Rank{rank}, .uid = 0};
    auto segment = (*arena)->Reserve(owner, 3, kSlotAlign);
    if (!segment) return 5;
    if (rank == 2) {
      if (random.OneIn(2) && !(*arena)->Release(*segment).ok()) return 6;
      continue;
    }
    if (!(random.OneIn(2) ? Save(**segment, random, step) : FreeOne(**segment, random))) return 7;
  }
}

}  // namespace
}  // namespace holdfast::agent

int main(int argc, char** argv) {
  if (argc != 5) return 64;
  return holdfast::agent::Run(argv[1], argv[2], std::strtoull(argv[3], nullptr, 10),
                              std::strtoull(argv[4], nullptr, 10));
}
