#pragma once

#include <cstdint>
#include <vector>

namespace holdfast::cuda {

/// The measured seconds of runs of one size.
struct GatherTimes {
  uint64_t run_bytes = 0;
  double engine = 0;
  double kernel = 0;
};
/// Returns the limit for measurements in ascending order of size: twice the largest size up to
/// which the kernel is clearly faster, since it takes multiprocessors from the training. 0: it is
/// not for the smallest size.
uint64_t GatherLimit(const std::vector<GatherTimes>& times);

}  // namespace holdfast::cuda
