#pragma once

#include "base/status.h"

namespace holdfast::cli {

/// The exit codes of the process. Numbers are stable: scripts branch on them.
enum class ExitCode : int {
  kOk = 0,
  kError = 1,
  kFinding = 2,   // the command worked and found a problem: damage, degraded health
  kPartial = 3,   // a part could not be done or checked
  kNotFound = 4,  // no such job, version, node or file
  kUnreachable = 5,
  kFenced = 6,
  kUsage = 64,
  kTimeout = 124,
  kInterrupted = 130,
};

/// Returns the exit code of a command that ends with this error.
ExitCode ExitCodeOf(const Status& status);
/// Returns the more severe of two results of parts of one command.
ExitCode Worse(ExitCode a, ExitCode b);

}  // namespace holdfast::cli
