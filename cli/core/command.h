#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "cli/core/exit_code.h"
#include "cli/core/options.h"
#include "cli/core/output.h"

namespace holdfast::cli {

/// The environment of a command. All of it outlives the command.
struct Context {
  const GlobalOptions& options;
  Output& output;
  Clock& clock;
};

/// One subcommand: declares its options, which set its members, and runs.
class Command {
 public:
  virtual ~Command() = default;
  /// Adds the subcommand to `app` and returns it. Option checks throw CLI::ValidationError from
  /// CLI11; the caller of parse() turns it into a usage error.
  virtual CLI::App* AddTo(CLI::App& app) = 0;
  /// Runs the command. The caller prints a returned error and derives the exit code from it.
  virtual Result<ExitCode> Run(Context& context) = 0;
};

/// Returns a bash script that completes `app`'s commands and options.
std::string BashCompletion(const CLI::App& app);
/// Returns a zsh completion function of `app`'s commands and options, with their descriptions.
std::string ZshCompletion(const CLI::App& app);

/// Validators of a job or node name, an endpoint, a version such as 3-120 and a tier.
CLI::Validator NameCheck(const std::string& what);
CLI::Validator EndpointCheck();
/// For the name of a new job: also refuses reserved names.
CLI::Validator JobNameCheck();
CLI::Validator VersionCheck();
CLI::Validator TierCheck();
/// For a duration such as 10s, which ParseDurationMs() parses.
CLI::Validator DurationCheck();

/// Parses the value of an option with VersionCheck(); empty when the option was not given.
std::optional<VersionId> VersionOf(const std::string& text);

/// Asks the user for confirmation on the terminal. Returns true without asking with `yes`, with
/// JSON output, and without a terminal (in a script).
bool Confirmed(Context& context, const std::string& question, bool yes);

/// -w/--watch, for commands that can repeat their output.
struct WatchOptions {
  bool watch = false;
  std::string interval = "2s";
  uint64_t count = 0;  // 0: until interrupted

  void AddTo(CLI::App& app);
};

/// Runs `frame` once, or repeatedly with --watch. With --watch, an error of a frame is printed
/// (also as a JSON line), and the next frame tries again.
Result<ExitCode> RunWatched(Context& context, const WatchOptions& watch,
                            const std::function<Result<ExitCode>()>& frame);

}  // namespace holdfast::cli
