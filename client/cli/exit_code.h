#pragma once

#include "storage/base/status.h"

namespace holdfast::cli {

/// What the process ends with. Numbers are stable: scripts branch on them.
enum class ExitCode : int {
  kOk = 0,
  kError = 1,
  kFinding = 2,   // it worked, and what it found is not well: damage, degraded health
  kPartial = 3,   // some of it could not be done or looked at
  kNotFound = 4,  // no such job, version, node or file
  kUnreachable = 5,
  kFenced = 6,
  kUsage = 64,
  kTimeout = 124,
  kInterrupted = 130,
};

/// The exit code that an error ends a command with.
ExitCode ExitCodeOf(const Status& status);
/// The graver of two results of parts of one command.
ExitCode Worse(ExitCode a, ExitCode b);

}  // namespace holdfast::cli
