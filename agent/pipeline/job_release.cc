#include "agent/pipeline/job_release.h"

#include <chrono>

namespace holdfast::agent {
namespace {
constexpr std::chrono::milliseconds kReleaseRetryInterval(500);
}  // namespace

std::vector<std::string> JobRelease::Advance() {
  ReleaseRetained();
  std::vector<std::string> released;
  const Clock::TimePoint now = clock_.Now();
  for (auto it = next_try_.begin(); it != next_try_.end();) {
    const std::string job = it->first;
    const bool reconnected = sessions_.HasSessionOf(job);
    if (!reconnected && !ranks_.HasMemoryOf(job)) {
      parity_.Stop(job);
      released.push_back(job);
    } else if (!reconnected) {
      if (now >= it->second) {
        it->second = now + kReleaseRetryInterval;
        parity_.Stop(job);
        // If the workers' queue is full, this is retried at the next interval.
        static_cast<void>(workers_.Post([this, job] { memory_.ReleaseJob(job); }));
      }
      ++it;
      continue;
    }
    it = next_try_.erase(it);
  }
  return released;
}

void JobRelease::ReleaseRetained() {
  if (!ranks_.HasRetained() || releasing_retained_.exchange(true)) return;
  const bool posted = workers_.Post([this] {
    memory_.ReleaseRetained();
    releasing_retained_.store(false);
  });
  if (!posted) releasing_retained_.store(false);
}

}  // namespace holdfast::agent
