#pragma once

#include <functional>
#include <string>
#include <vector>

#include "agent/selftest/check.h"
#include "agent/selftest/cpu_check.h"
#include "agent/selftest/disk_check.h"
#include "agent/selftest/memory_check.h"

// Tests the parts of this node that a training job relies on. Takes at most 20 s with the default
// options and one disk. Each further disk takes up to 8 s for writing plus the time for reading.

namespace holdfast::selftest {

struct SelfTestOptions {
  CpuCheckOptions cpu;
  MemoryCheckOptions memory;
  DiskCheckOptions disk;
  std::vector<std::string> data_dirs;  // existing folders; empty: no disk is tested
  /// Called after each part with its result.
  std::function<void(const CheckResult& result)> progress;
  /// Called before each part; true: the remaining parts are not tested, and have no result.
  std::function<bool()> cancelled;
};

/// Runs all checks and returns one result per part. A part that could not be tested is kNotTested.
std::vector<CheckResult> RunSelfTest(const SelfTestOptions& options);

}  // namespace holdfast::selftest
