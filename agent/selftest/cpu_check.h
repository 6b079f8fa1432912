#pragma once

#include <cstdint>
#include <functional>

#include "agent/selftest/check.h"

namespace holdfast::selftest {

struct CpuCheckOptions {
  double seconds = 2;  // of each core, all at once
  /// Stands for a core that computes wrongly, in tests: the core's number and a result → what the
  /// core says.
  std::function<uint64_t(int core, uint64_t result)> wrong;
};

/// Has every core that this process may use compute, over and over, what the compiler has computed
/// as well: an integer chain, a matrix product in double precision whose entries are exact, and a
/// CRC-32C. A core with a wrong result fails the check. Finds cores that are silently defective
/// under load; not those that are wrong once a day.
CheckResult CheckCpu(const CpuCheckOptions& options);

}  // namespace holdfast::selftest
