#include "client/cuda/gather_limit.h"

namespace holdfast::cuda {
namespace {
/// How much faster the kernel must be. It takes multiprocessors from the training, and copy engines
/// hide a part of their own cost behind copies on the other stream.
constexpr double kGain = 1.2;
}  // namespace

uint64_t GatherLimit(const std::vector<GatherTimes>& times) {
  uint64_t limit = 0;
  for (const GatherTimes& one : times) {
    if (one.kernel * kGain >= one.engine) break;
    limit = 2 * one.run_bytes;
  }
  return limit;
}

}  // namespace holdfast::cuda
