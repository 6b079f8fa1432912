#pragma once

#include "base/clock.h"

namespace holdfast::cli {

/// The `holdfast` command: parses, runs one command, returns the process's exit code. Takes over
/// SIGINT and SIGTERM; call it once, from main, before any thread starts.
int RunCli(int argc, char** argv, Clock& clock);

}  // namespace holdfast::cli
