#pragma once

#include <string>

namespace holdfast::agent {

/// Starts the worker that `<folder>/spec` describes and stays its parent: writes `<folder>/pid`,
/// copies what it says to its log, and when it has ended kills what is left of its process group
/// and writes `<folder>/exit`. Returns the shim's exit code: 0 once that is written, however the
/// worker ended. SIGTERM, SIGINT and SIGHUP are for the worker, not for the shim.
int RunShim(const std::string& folder);

}  // namespace holdfast::agent
