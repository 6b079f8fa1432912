#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "client/cli/exit_code.h"
#include "client/cli/options.h"
#include "client/cli/output.h"
#include "storage/base/clock.h"
#include "storage/base/ids.h"

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

std::unique_ptr<Command> MakeStatusCommand();
std::unique_ptr<Command> MakeNodesCommand();
std::unique_ptr<Command> MakeVersionsCommand();
std::unique_ptr<Command> MakeVerifyCommand();
std::unique_ptr<Command> MakeInspectCommand();
std::unique_ptr<Command> MakeRestoreCommand();
std::unique_ptr<Command> MakeExportCommand();
std::unique_ptr<Command> MakeImportCommand();
std::unique_ptr<Command> MakePinCommand(bool pin);
std::unique_ptr<Command> MakeRetainCommand();
std::unique_ptr<Command> MakeForgetCommand();
std::unique_ptr<Command> MakeAdoptCommand();
std::unique_ptr<Command> MakeRunCommand();
std::unique_ptr<Command> MakeStopCommand();
std::unique_ptr<Command> MakeRunsCommand();
std::unique_ptr<Command> MakeIncidentsCommand();
std::unique_ptr<Command> MakeQuarantineCommand();
std::unique_ptr<Command> MakeAdviseCommand();
std::unique_ptr<Command> MakeDrillCommand();
std::unique_ptr<Command> MakeDoctorCommand();
std::unique_ptr<Command> MakeDumpCommand();

/// Returns a bash script that completes `app`'s commands and options.
std::string BashCompletion(const CLI::App& app);

/// Validators of a job or node name, an endpoint, a version such as 3-120 and a tier.
CLI::Validator NameCheck(const std::string& what);
CLI::Validator EndpointCheck();
/// For the name of a new job: also refuses reserved names.
CLI::Validator JobNameCheck();
CLI::Validator VersionCheck();
CLI::Validator TierCheck();
/// For a duration such as 10s, which ParseDurationMs() parses.
CLI::Validator DurationCheck();

/// Parses the value of an option with VersionCheck(); 0-0 when the option was not given.
VersionId VersionOf(const std::string& text);

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
