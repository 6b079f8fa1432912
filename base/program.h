#pragma once

#include <functional>
#include <optional>
#include <string>

#include "base/config.h"

namespace holdfast {

/// Returns the text that --version prints after the name, e.g. "0.1.0 (commit abc123, gcc 12.2.0,
/// crash points)".
std::string BuildInfo();

/// Parses the options of every server: --config FILE, --set KEY=VALUE, --version, --print-config,
/// --check-config, --help. Loads the values into the fields bound to `schema`. Call it first in
/// main.
/// Returns the exit code when the process has nothing more to do (64 for usage, 1 for a bad
/// configuration, 0 after a printout), and nothing when the process should run. `check` makes the
/// same checks of the loaded values as the server's start. --check-config therefore refuses what
/// the start refuses, except for what depends on other running processes.
std::optional<int> ParseProgramArgs(int argc, char** argv, const std::string& description,
                                    ConfigSchema& schema, const std::function<Status()>& check);

}  // namespace holdfast
