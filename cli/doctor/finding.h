#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/core/exit_code.h"

namespace holdfast::cli {

/// Whether a node is ready for a job, in one respect.
enum class Readiness : uint8_t {
  kOk,
  kSkipped,  // does not apply to this node or its configuration
  kWarn,     // jobs run, more slowly or with less room
  kUnknown,  // this user may not check it, or the check did not finish
  kFail,     // jobs cannot run, or lose data
};

/// Returns "ok", "skipped", "warn", "unknown" or "FAIL".
std::string_view ToString(Readiness readiness);

/// What one check of a node found.
struct Finding {
  std::string check;  // "io_uring", "disk /data0", "peer n3"
  Readiness readiness = Readiness::kOk;
  std::string what;    // one line, with figures
  std::string remedy;  // what to do; empty for kOk and kSkipped
};
using Findings = std::vector<Finding>;

/// Returns kFinding when a check failed, kPartial when one is unknown, and otherwise kOk.
ExitCode ExitCodeOf(const Findings& findings);

}  // namespace holdfast::cli
