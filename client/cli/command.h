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

/// What a command works with. All of it outlives the command.
struct Context {
  const GlobalOptions& options;
  Output& output;
  Clock& clock;
};

/// One subcommand: it describes its options, whose values are its members, and runs.
class Command {
 public:
  virtual ~Command() = default;
  /// Adds the subcommand to `app` and returns it. Checks on options throw CLI::ValidationError from
  /// within CLI11, which the caller of parse() turns into a usage error.
  virtual CLI::App* AddTo(CLI::App& app) = 0;
  /// Does it. A returned error is shown by the caller and decides the exit code.
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

/// A bash script that completes `app`'s commands and options.
std::string BashCompletion(const CLI::App& app);

/// Validators: a job or node name; a version such as 3-120; a tier.
CLI::Validator NameCheck(const std::string& what);
CLI::Validator EndpointCheck();
/// Of a job that begins: reserved names are refused, too.
CLI::Validator JobNameCheck();
CLI::Validator VersionCheck();
CLI::Validator TierCheck();
/// A duration such as 10s, read with ParseDurationMs.
CLI::Validator DurationCheck();

/// The value of an option that VersionCheck passed; 0-0 when it was not given.
VersionId VersionOf(const std::string& text);

/// Asks on the terminal where somebody can answer; true with `yes`, under JSON and in a script,
/// which has decided already.
bool Confirmed(Context& context, const std::string& question, bool yes);

/// -w/--watch of the commands that can repeat themselves.
struct WatchOptions {
  bool watch = false;
  std::string interval = "2s";
  uint64_t count = 0;  // 0: until interrupted

  void AddTo(CLI::App& app);
};

/// Runs `frame` once, or again and again under --watch. While watching, an error of a frame is
/// shown (as a JSON line too) and the next frame tries again.
Result<ExitCode> RunWatched(Context& context, const WatchOptions& watch,
                            const std::function<Result<ExitCode>()>& frame);

}  // namespace holdfast::cli
