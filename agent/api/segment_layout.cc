#include "agent/api/segment_layout.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <ctime>
#include <optional>

#include "base/scheduler.h"

namespace holdfast::agent {
namespace {
// A writer that only changes the wake word would keep its reader busy. After this many wakes
// without progress the reader sleeps between checks.
constexpr int kIdleWakesMax = 64;
constexpr auto kIdleSleep = std::chrono::milliseconds(1);

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));
static_assert(sizeof(SlotProgress) == 64);
static_assert(sizeof(PhaseHint) == 64 && offsetof(PhaseHint, begun) == 8);
static_assert(offsetof(SegmentControl, phases) == 4096);
static_assert(offsetof(SegmentControl, collectives) == 8192);

// Shared between processes, hence without FUTEX_PRIVATE_FLAG.
void FutexWake(std::atomic<uint32_t>& word) {
  if (Scheduler* scheduler = Scheduler::Installed()) return scheduler->Wake(&word, /*all=*/true);
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr,
            0);
}

void FutexWait(std::atomic<uint32_t>& word, uint32_t expected,
               std::optional<Clock::Duration> timeout) {
  if (Scheduler* scheduler = Scheduler::Installed()) {
    scheduler->Wait(&word, timeout ? scheduler->Now() + *timeout : Clock::TimePoint::max());
    return;
  }
  timespec limit{};
  if (timeout) {
    auto seconds = std::chrono::duration_cast<std::chrono::seconds>(*timeout);
    limit.tv_sec = seconds.count();
    limit.tv_nsec = (*timeout - seconds).count();
  }
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, expected,
            timeout ? &limit : nullptr, nullptr, 0);
}
}  // namespace

void PublishProgress(SlotProgress& progress, uint64_t copied) {
  progress.copied.store(copied, std::memory_order_release);
  progress.wake.fetch_add(1, std::memory_order_release);
  FutexWake(progress.wake);
}

uint64_t AwaitProgress(SlotProgress& progress, uint64_t seen, int timeout_ms, Clock& clock) {
  const auto deadline = clock.Now() + std::chrono::milliseconds(std::max(timeout_ms, 0));
  for (int wakes = 0;; ++wakes) {
    // The word is read before the counter: a change of the counter after that changes the word too,
    // and the wait below returns at once.
    uint32_t word = progress.wake.load(std::memory_order_acquire);
    uint64_t copied = progress.copied.load(std::memory_order_acquire);
    if (copied > seen) return copied;
    std::optional<Clock::Duration> left;
    if (timeout_ms >= 0) {
      left = deadline - clock.Now();
      if (*left <= Clock::Duration::zero()) return seen;
    }
    if (wakes > kIdleWakesMax) clock.SleepFor(kIdleSleep);
    FutexWait(progress.wake, word, left);
  }
}

}  // namespace holdfast::agent
