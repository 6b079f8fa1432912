#pragma once

#include <cstdint>
#include <functional>

#include "agent/selftest/check.h"

namespace holdfast::selftest {

struct CpuCheckOptions {
  double seconds = 2;  // all cores run concurrently
  /// Simulates a defective core in tests: maps a core's number and a result to the result that the
  /// core returns.
  std::function<uint64_t(int core, uint64_t result)> wrong;
};

/// Runs computations with known results repeatedly on every core that this process may use: an
/// integer chain, a matrix product in double precision with exact entries, and a CRC-32C. The
/// expected results are those that the compiler has computed. A wrong result fails the check. Finds
/// cores that silently compute wrong results under load, but not cores with one wrong result per
/// day.
CheckResult CheckCpu(const CpuCheckOptions& options);

}  // namespace holdfast::selftest
