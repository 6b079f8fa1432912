#pragma once

#include "base/clock.h"
#include "faults/injector/config.h"

namespace holdfast::faults {

/// Runs the fault injector until SIGTERM or SIGINT and returns the exit code of the process. Faults
/// in force continue, and end at their time.
int RunInjector(const InjectorConfig& config, Clock& clock);

}  // namespace holdfast::faults
