#include "coordinator/detect/ring.h"

#include <algorithm>

#include "coordinator/detect/robust.h"

namespace holdfast::detect {
namespace {

constexpr uint32_t kReceivesMin = 20;
constexpr uint32_t kRemembered = 256;  // receives
constexpr double kDiffer = 0.08;       // of the time between two receives

}  // namespace

void RingWaits::Add(uint32_t position, uint64_t started_ns, uint64_t ended_ns) {
  Wait& wait = waits_[position];
  wait.receives = std::min(wait.receives + 1, kRemembered);
  wait.mean_ns += (static_cast<double>(ended_ns - started_ns) - wait.mean_ns) / wait.receives;
  if (wait.started_ns != 0 && started_ns > wait.started_ns) {
    const auto interval_ns = static_cast<double>(started_ns - wait.started_ns);
    wait.interval_ns += (interval_ns - wait.interval_ns) / wait.receives;
  }
  wait.started_ns = started_ns;
}

bool RingWaits::differs() const {
  double least_ns = waits_.front().mean_ns;
  double most_ns = least_ns;
  for (const Wait& wait : waits_) {
    if (wait.receives < kReceivesMin) return false;
    least_ns = std::min(least_ns, wait.mean_ns);
    most_ns = std::max(most_ns, wait.mean_ns);
  }
  return most_ns - least_ns > kDiffer * waits_.front().interval_ns;
}

std::vector<double> RingWaits::SharesOf(uint32_t position) const {
  std::vector<double> means;
  for (const Wait& wait : waits_) {
    if (wait.receives < kReceivesMin) return {};
    means.push_back(wait.mean_ns);
  }
  std::vector<double> sorted = means;
  const double usual = LowerMedian(std::span<double>(sorted));
  const double lateness = usual - means[position];
  if (lateness <= 0) return {};
  for (double& mean : means) mean = (usual - mean) / lateness;
  return means;
}

}  // namespace holdfast::detect
