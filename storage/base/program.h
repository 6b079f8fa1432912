#pragma once

#include <functional>
#include <optional>
#include <string>

#include "storage/base/config.h"

namespace holdfast {

/// "0.1.0 (commit abc123, gcc 12.2.0, crash points)" — what --version prints after the name.
std::string BuildInfo();

/// What every server's main does first: --config FILE, --set KEY=VALUE, --version, --print-config,
/// --check-config, --help. Loads into the fields bound to `schema`.
/// Returns the exit code when the process has nothing more to do (64 for usage, 1 for a bad
/// configuration, 0 after a printout); nothing when it should run. `check` is what the start itself
/// asks of the loaded values: --check-config refuses what the start refuses, as far as that does
/// not depend on what else runs.
std::optional<int> ParseProgramArgs(int argc, char** argv, const std::string& description,
                                    ConfigSchema& schema, const std::function<Status()>& check);

}  // namespace holdfast
