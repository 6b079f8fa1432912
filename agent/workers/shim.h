#pragma once

#include <string>

namespace holdfast::agent {

/// Starts the worker that `<folder>/spec` describes and stays its parent: writes `<folder>/pid` and
/// copies the worker's output to its log. When the worker has ended, kills the rest of its process
/// group and writes `<folder>/exit`. Returns the shim's exit code: 0 once that file is written,
/// however the worker ended. The shim ignores SIGTERM, SIGINT and SIGHUP; the worker gets them.
int RunShim(const std::string& folder);

}  // namespace holdfast::agent
