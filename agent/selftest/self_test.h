#pragma once

#include <functional>
#include <string>
#include <vector>

#include "agent/selftest/check.h"
#include "agent/selftest/cpu_check.h"
#include "agent/selftest/disk_check.h"
#include "agent/selftest/memory_check.h"

// Tests the parts of this node that a training job relies on. At most 20 s with the default
// options and one disk; each further disk takes up to 8 s to write, and as long as it needs to
// read.

namespace holdfast::selftest {

struct SelfTestOptions {
  CpuCheckOptions cpu;
  MemoryCheckOptions memory;
  DiskCheckOptions disk;
  std::vector<std::string> data_dirs;  // that exist; none: no disk is tested
  /// Told as each part is over.
  std::function<void(const CheckResult& result)> progress;
};

/// One result a part. Never fails as a whole: what could not be tried is kNotTested.
std::vector<CheckResult> RunSelfTest(const SelfTestOptions& options);

}  // namespace holdfast::selftest
