#include "cli/cli.h"

#include <grpc/support/log.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <numeric>
#include <utility>

#include "base/log.h"
#include "base/program.h"
#include "cli/advise/commands.h"
#include "cli/backup/commands.h"
#include "cli/cluster/commands.h"
#include "cli/core/command.h"
#include "cli/core/interrupt.h"
#include "cli/doctor/commands.h"
#include "cli/drill/commands.h"
#include "cli/export/commands.h"
#include "cli/join/commands.h"
#include "cli/join/operator_identity.h"
#include "cli/offline/commands.h"
#include "cli/shards/commands.h"

namespace holdfast::cli {

namespace {

constexpr const char* kDescription =
    "holdfast - show, verify and restore the checkpoints of training jobs";

constexpr const char* kProgramFooter = R"(
Examples:
  holdfast status                                 health of the cluster and its jobs
  holdfast nodes                                  nodes and their parity groups
  holdfast versions my-job                        the checkpoints of a job
  holdfast run --nnodes 4 --job my-job -- python train.py
                                                  launch a job and keep it running
  holdfast incidents                              faults, and how they were handled
  holdfast advise --without n7                    can this node be taken out?
  holdfast doctor                                 is this node ready for a job?
  holdfast drill kill-rank --job my-job           does the job recover?
  holdfast restore my-job --to ./out --dry-run    the source of each shard
  holdfast export my-job --format hf --to ./out   the model, for transformers
  holdfast verify my-job --deep                   read and check every byte
  holdfast inspect rank-00000-of-00004.safetensors
  holdfast verify --data-dir /data/holdfast       without a coordinator

Exit codes: 0 ok, 1 error, 2 a finding (damage, degraded), 3 partial, 4 not found,
  5 coordinator or agent unreachable, 6 fenced, 64 usage, 124 time-out, 130 interrupted.
Data goes to stdout, progress and messages to stderr. NO_COLOR is respected.
)";

/// The text of options whose value is not text.
struct RawOptions {
  std::string timeout = "10s";
  std::string format = "table";
};

Format FormatOf(const std::string& name) {
  if (name == "json") return Format::kJson;
  return name == "wide" ? Format::kWide : Format::kTable;
}

void AddGlobalOptions(CLI::App& app, GlobalOptions& options, RawOptions& raw) {
  app.add_option("--endpoint", options.endpoint,
                 "The coordinator: HOST:PORT or unix:/PATH; several: separated by commas")
      ->envname(kEndpointVariable)
      ->check(EndpointCheck())
      ->capture_default_str();
  app.add_option("--timeout", raw.timeout,
                 "Longest wait for an answer, and longest silence of a transfer")
      ->type_name("DURATION")
      ->check(DurationCheck())
      ->capture_default_str();
  app.add_option("-o,--output", raw.format, "table, wide (all columns, nothing cut) or json")
      ->type_name("FORMAT")
      ->check(CLI::IsMember({"table", "wide", "json"}).description(""))
      ->capture_default_str();
  app.add_option("--tls-ca", options.tls_ca, "PEM file of the CA that signed the servers");
  app.add_option("--tls-cert", options.tls_cert, "PEM file of this operator's certificate");
  app.add_option("--tls-key", options.tls_key, "PEM file of that certificate's key");
  app.add_flag("--insecure-loopback", options.insecure_loopback,
               "Permit loopback addresses without TLS, where other users may listen");
}

/// Drops gRPC's own log: the command prints better messages for the same errors.
void DropGrpcLog(gpr_log_func_args*) {}

/// Exists as long as the process: CLI11 keeps references to the values.
struct Program {
  CLI::App app{kDescription, "holdfast"};
  GlobalOptions options;
  RawOptions raw;
  std::vector<std::pair<CLI::App*, std::unique_ptr<Command>>> commands;
  CLI::App* completion = nullptr;
  std::string shell;  // the argument of `completion`
};

/// Declares every command and option.
void Describe(Program& program) {
  CLI::App& app = program.app;
  app.footer(kProgramFooter);
  app.require_subcommand(1);
  app.fallthrough();
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::Throw);
  app.set_help_flag("-h,--help", "Print this help and exit");
  app.set_version_flag("--version", "holdfast " + BuildInfo(),
                       "Print version, commit and compiler");
  app.set_config("--config", DefaultConfigFile(),
                 "TOML file with values of the options above, as `holdfast join` writes it");
  AddGlobalOptions(app, program.options, program.raw);
  auto add = [&](std::unique_ptr<Command> command) {
    CLI::App* subcommand = command->AddTo(app);
    program.commands.emplace_back(subcommand, std::move(command));
  };
  add(MakeStatusCommand());
  add(MakeTopCommand());
  add(MakeUiCommand());
  add(MakeNodesCommand());
  add(MakeVersionsCommand());
  add(MakeVerifyCommand());
  add(MakeInspectCommand());
  add(MakeRestoreCommand());
  add(MakeExportCommand());
  add(MakeImportCommand());
  add(MakePinCommand(true));
  add(MakePinCommand(false));
  add(MakeRetainCommand());
  add(MakeForgetCommand());
  add(MakeAdoptCommand());
  add(MakeBackupCommand());
  add(MakeRunCommand());
  add(MakeStopCommand());
  add(MakeRunsCommand());
  add(MakeIncidentsCommand());
  add(MakeQuarantineCommand());
  add(MakeDrainCommand());
  add(MakeAuditCommand());
  add(MakeClusterCommand());
  add(MakeTokenCommand());
  add(MakeJoinCommand());
  add(MakeCertificatesCommand());
  add(MakeRevokeCommand());
  add(MakeAdviseCommand());
  add(MakeDoctorCommand());
  add(MakeDrillCommand());
  add(MakeDumpCommand());
  program.completion =
      app.add_subcommand("completion", "Print a shell completion script (bash, zsh)");
  program.completion->footer(
      "\nExamples:\n  source <(holdfast completion bash)\n"
      "  holdfast completion zsh > ~/.zfunc/_holdfast    in a folder of $fpath\n");
  program.completion->add_option("SHELL", program.shell, "bash or zsh")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh"}).description(""));
}

size_t EditDistance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

/// Returns the first argument that is neither an option nor an option's value; empty: none.
std::string FirstWord(const CLI::App& app, int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    std::string argument = argv[i];
    if (argument.empty() || argument[0] != '-') return argument;
    if (argument.find('=') != std::string::npos) continue;
    const CLI::Option* option = app.get_option_no_throw(argument);
    if (option != nullptr && option->get_items_expected_max() > 0) ++i;
  }
  return "";
}

/// Returns the error for a command that does not exist; empty: the command exists or is missing.
std::string UnknownCommand(const CLI::App& app, int argc, char** argv) {
  const std::string word = FirstWord(app, argc, argv);
  if (word.empty()) return "";
  std::string nearest;
  size_t least = std::max<size_t>(2, word.size() / 2);
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    const std::string& name = command->get_name();
    if (name == word) return "";
    const size_t distance = name.starts_with(word) ? 0 : EditDistance(word, name);
    if (distance > least || (distance == least && !nearest.empty())) continue;
    least = distance;
    nearest = name;
  }
  return "there is no command '" + word + "'" +
         (nearest.empty() ? "" : "; did you mean '" + nearest + "'?") +
         (nearest.empty() ? "; " : " ") + "`holdfast --help` lists all commands";
}

/// Runs the chosen command. parse() has checked that exactly one was chosen.
Result<ExitCode> RunChosen(Program& program, Output& output, Clock& clock) {
  if (program.completion->parsed()) {
    output.Write(program.shell == "zsh" ? ZshCompletion(program.app) : BashCompletion(program.app));
    return ExitCode::kOk;
  }
  Context context{program.options, output, clock};
  // Commands that work without a coordinator must work without a valid certificate, too.
  const bool local = program.app.got_subcommand("cluster") || program.app.got_subcommand("join") ||
                     program.app.got_subcommand("inspect");
  if (!local) HOLDFAST_RETURN_IF_ERROR(KeepOperatorIdentity(program.options, context.clock));
  for (auto& [subcommand, command] : program.commands) {
    if (subcommand->parsed()) return command->Run(context);
  }
  return Fail(InternalError("no command was chosen"));
}

}  // namespace

int RunCli(int argc, char** argv, Clock& clock) {
  Interrupt::Install();
  gpr_set_log_function(DropGrpcLog);
  ConfigureLog("holdfast", LogLevel::kError);
  Program program;
  Describe(program);
  try {
    program.app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const std::string unknown =
        error.get_exit_code() == 0 ? "" : UnknownCommand(program.app, argc, argv);
    if (!unknown.empty()) {
      PrintError(InvalidArgumentError(unknown));
      return static_cast<int>(ExitCode::kUsage);
    }
    int code = program.app.exit(error, std::cout, std::cerr);
    return code == 0 ? 0 : static_cast<int>(ExitCode::kUsage);
  }
  program.options.timeout_ms = ParseDurationMs(program.raw.timeout).value_or(10'000);
  program.options.format = FormatOf(program.raw.format);
  Environment environment = ReadEnvironment();
  Output output(program.options.format,
                StdoutTraitsOf(environment.no_colour, environment.dumb_terminal));
  Result<ExitCode> result = RunChosen(program, output, clock);
  Status flushed = output.Flush();
  if (Interrupt::requested()) return static_cast<int>(ExitCode::kInterrupted);
  if (!result) {
    PrintError(result.error());
    return static_cast<int>(ExitCodeOf(result.error()));
  }
  if (!flushed.ok()) {
    // A pager that was closed early is not an error to report.
    if (flushed.code() != ErrorCode::kCancelled) PrintError(flushed);
    return static_cast<int>(ExitCode::kError);
  }
  return static_cast<int>(*result);
}

}  // namespace holdfast::cli
