#include "coordinator/detect/ring.h"

#include <algorithm>

#include "coordinator/detect/robust.h"

namespace holdfast::detect {
namespace {

constexpr uint32_t kReceivesMin = 20;
constexpr uint32_t kRemembered = 256;  // receives

}  // namespace

void RingWaits::Add(uint32_t position, uint64_t duration_ns) {
  Wait& wait = waits_[position];
  wait.receives = std::min(wait.receives + 1, kRemembered);
  wait.mean_ns += (static_cast<double>(duration_ns) - wait.mean_ns) / wait.receives;
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
