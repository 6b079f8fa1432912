#include "agent/server/processor_waits.h"

#include <algorithm>

#include "base/process.h"

namespace holdfast::agent {
namespace {
constexpr uint64_t kPeriodNs = 2'000'000'000;
constexpr uint64_t kOutdatedNs = 5'000'000'000;
/// Of a period. A process that runs for longer moves, or hangs in a loop.
constexpr uint64_t kRunsPercent = 20;
constexpr uint64_t kPercentMax = 100'000;
}  // namespace

uint32_t ProcessorWaits::WaitIn(uint64_t period_ns, const ProcessorTimes& before,
                                const ProcessorTimes& after, char state) {
  const uint64_t ran_ns = after.ran_ns - std::min(before.ran_ns, after.ran_ns);
  const uint64_t waited_ns = after.waited_ns - std::min(before.waited_ns, after.waited_ns);
  // Some kernels count neither, and show zeros.
  if (after.ran_ns == 0) return 0;
  // The kernel adds a wait once it has ended.
  if (state == 'R' && ran_ns == 0) return 100;
  if (ran_ns >= period_ns * kRunsPercent / 100) return 0;
  return static_cast<uint32_t>(std::min(waited_ns * 100 / period_ns, kPercentMax));
}

uint32_t ProcessorWaits::PercentOf(pid_t pid, char state, uint64_t now_ns) {
  std::erase_if(samples_,
                [&](const auto& sample) { return now_ns - sample.second.at_ns > kOutdatedNs; });
  const auto [found, first] = samples_.try_emplace(pid);
  Sample& sample = found->second;
  const uint64_t period_ns = now_ns - sample.at_ns;
  if (!first && period_ns < kPeriodNs) return sample.percent;
  const auto times = ProcessorTimesOf(pid);
  sample.percent = !first && times ? WaitIn(period_ns, sample.times, *times, state) : 0;
  sample.at_ns = now_ns;
  sample.times = times.value_or(ProcessorTimes());
  return sample.percent;
}

}  // namespace holdfast::agent
