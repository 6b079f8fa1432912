#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <fstream>
#include <iostream>

#include "cli/cluster/commands.h"
#include "cli/cluster/coordinator_client.h"
#include "cli/cluster/run_follower.h"
#include "cli/core/command.h"
#include "cli/core/program.h"
#include "coordinator/contract/limits.h"
#include "coordinator/contract/runs.h"

namespace holdfast::cli {

namespace {

constexpr const char* kRunFooter = R"(
The coordinator keeps the job running until every worker has ended with exit code 0. When a worker
dies or hangs, or a node is lost, the coordinator restarts all ranks from the newest version that
can be restored, on the same nodes or with a spare in place of a lost node. A job whose workers fail
three times in a row before it has saved a version is not restarted again: the job itself is then
the cause, and its last lines are shown. --max-restarts is the budget of restarts. The budget is
full again after --restarts-refill versions of new steps.

A hang first opens an incident. The job is restarted when the hang has lasted for the time in the
coordinator's [detect] section, or for --hang-after. Closing this command does not end the job.
SIGINT or SIGTERM stop the job in order (a last version goes to disk first).

Workers get torchrun's variables (RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, …) and
HOLDFAST_JOB, HOLDFAST_RUN_ID, HOLDFAST_SOCKET. They run as you, on nodes whose agents launch
workers (workers.enabled). The job then belongs to you. Pass secrets with --env-file: other users
can read the arguments of this command. The file has a line NAME=value for each variable.

The program is the one that this shell would start, by its full path (for example `python` of an
active virtual environment), in this directory, with this PATH and VIRTUAL_ENV. All of these must
exist on every node. With --from-agent, each agent searches for the program in its own PATH.

Examples:
  holdfast run --nnodes 2 --nproc-per-node 8 --spares 1 --job gpt -- python train.py --lr 3e-4
  holdfast run --job gpt --nnodes 4 --detach -- ./train         return once the job is accepted
  holdfast run --job gpt --hang-after 30m -- python train.py    evaluation takes 20 minutes
  holdfast run --job gpt --follow                               show a running job
  holdfast run --job gpt --env-file ~/.keys -- python train.py  secrets from a file
)";

constexpr const char* kStopFooter = R"(
Waits until the newest version in memory is also committed on disk, at most --deadline. Then ends
the workers: SIGTERM, and SIGKILL after the job's grace.

Examples:
  holdfast stop gpt
  holdfast stop gpt --deadline 25s     before a preempted node is lost
  holdfast stop gpt --now              versions that are not on disk may be lost
)";

Result<std::string> WorkingDirectory() {
  std::array<char, PATH_MAX> path{};
  if (::getcwd(path.data(), path.size()) == nullptr) {
    return Fail(ErrnoStatus(errno, "read the working directory"));
  }
  return std::string(path.data());
}

class RunCommand : public Command {
 public:
  CLI::App* AddTo(CLI::App& app) override {
    CLI::App* command = app.add_subcommand("run", "Launch a job on the nodes and keep it running");
    command->footer(kRunFooter);
    command->add_option("--job", job_, "The job's name")->required()->check(JobNameCheck());
    command->add_option("--nnodes", nodes_, "Number of nodes")->capture_default_str();
    command->add_option("--nproc-per-node", ranks_, "Workers per node")->capture_default_str();
    command->add_option("--spares", spares_, "Spare nodes to wait for at the start")
        ->capture_default_str();
    command->add_option("--max-restarts", restarts_, "Budget of restarts without progress")
        ->capture_default_str();
    command
        ->add_option("--restarts-refill", refill_,
                     "New versions after which the budget of restarts is full again; 0: never")
        ->capture_default_str();
    command
        ->add_option("--detect-action", detect_action_,
                     "Action when the job is slow or hangs: off, alert or restart [the "
                     "coordinator's configuration]")
        ->check(CLI::IsMember({"off", "alert", "restart"}));
    command
        ->add_option("--hang-after", hang_after_,
                     "Restart after a hang of this duration, of whatever kind [the coordinator's "
                     "configuration]")
        ->type_name("DURATION")
        ->check(DurationCheck());
    command->add_option("--grace", grace_, "Time between SIGTERM and SIGKILL")
        ->type_name("DURATION")
        ->check(DurationCheck())
        ->capture_default_str();
    command->add_option("--env", environment_, "NAME=value for the workers; may be repeated")
        ->take_all();
    command->add_option("--env-file", environment_file_,
                        "File with a line NAME=value for each variable; - is standard input");
    command->add_option("--user", user_,
                        "Run as this user, as an operator; the coordinator's access.run_as_users "
                        "must name the user");
    command->add_option("--chdir", directory_,
                        "Working directory on every node [the current directory]");
    command->add_flag("--from-agent", from_agent_,
                      "Search for the program in the PATH of each agent, not in this one");
    command->add_flag("--detach", detach_, "Return once the coordinator has accepted the job");
    command->add_flag("--follow", follow_, "Show a running job, launch nothing");
    command->add_option("COMMAND", command_, "The command to run, after --");
    command->positionals_at_end();
    return command;
  }

  Result<ExitCode> Run(Context& context) override {
    HOLDFAST_ASSIGN_OR_RETURN(CoordinatorClient client,
                              CoordinatorClient::Open(context.options, context.clock));
    if (follow_) return RunFollower(context, client, job_).Follow(false, 0);
    coordinator::RunSpec spec;
    HOLDFAST_RETURN_IF_ERROR(Describe(&spec));
    HOLDFAST_RETURN_IF_ERROR(client.StartRun(spec));
    if (!detach_) return RunFollower(context, client, job_).Follow(true, kStopDeadlineMs);
    if (context.output.json()) {
      context.output.WriteJson("run", {{"job", job_}});
    } else {
      context.output.Write(fmt::format(
          "job '{}' is accepted; `holdfast run --follow --job {}` follows it\n", job_, job_));
    }
    return ExitCode::kOk;
  }

 private:
  static constexpr int64_t kStopDeadlineMs = 60'000;

  Status Describe(coordinator::RunSpec* spec) const {
    HOLDFAST_ASSIGN_OR_RETURN(std::string here, WorkingDirectory());
    spec->set_job(job_);
    spec->set_directory(directory_.empty() ? here : directory_);
    for (const std::string& word : command_) spec->add_command(word);
    if (!from_agent_) AddCallersProgram(here, spec);
    HOLDFAST_RETURN_IF_ERROR(AddFromFile(spec));
    spec->set_run_as(user_);
    // A later value of a variable overrides an earlier one.
    for (const std::string& variable : environment_) spec->add_environment(variable);
    spec->set_nodes(nodes_);
    spec->set_ranks_per_node(ranks_);
    spec->set_spares(spares_);
    spec->set_restarts_max(restarts_);
    spec->set_grace_ms(ParseDurationMs(grace_).value_or(10'000));
    spec->set_refill_versions(refill_);
    const std::pair<const char*, DetectAction> actions[] = {{"off", DetectAction::kOff},
                                                            {"alert", DetectAction::kAlert},
                                                            {"restart", DetectAction::kRestart}};
    for (const auto& [name, action] : actions) {
      if (detect_action_ == name) spec->set_detect_action(static_cast<uint32_t>(action));
    }
    if (!hang_after_.empty()) spec->set_hang_after_ms(ParseDurationMs(hang_after_).value_or(0));
    return Status::Ok();
  }

  /// Adds the variables of --env-file. Errors name a line and not its text, which may be a secret.
  Status AddFromFile(coordinator::RunSpec* spec) const {
    if (environment_file_.empty()) return Status::Ok();
    std::ifstream file;
    if (environment_file_ != "-") file.open(environment_file_);
    std::istream& input = environment_file_ == "-" ? std::cin : file;
    if (!input) return ErrnoStatus(errno, "open " + environment_file_);
    int number = 0;
    for (std::string line; std::getline(input, line);) {
      ++number;
      if (line.empty() || line[0] == '#') continue;
      const size_t equals = line.find('=');
      if (equals == 0 || equals == std::string::npos) {
        return InvalidArgumentError(
            fmt::format("{} line {} is not NAME=value", environment_file_, number));
      }
      spec->add_environment(line);
    }
    return input.bad() ? ErrnoStatus(errno, "read " + environment_file_) : Status::Ok();
  }

  void AddCallersProgram(const std::string& here, coordinator::RunSpec* spec) const {
    const Caller caller = ReadCaller();
    if (!command_.empty()) spec->set_command(0, FindProgram(command_[0], caller.path, here));
    if (!caller.path.empty()) spec->add_environment("PATH=" + caller.path);
    if (!caller.virtual_env.empty()) spec->add_environment("VIRTUAL_ENV=" + caller.virtual_env);
  }

  std::string job_;
  uint32_t nodes_ = 1;
  uint32_t ranks_ = 1;
  uint32_t spares_ = 0;
  uint32_t restarts_ = 10;
  uint32_t refill_ = RunSpec().refill_versions;
  std::string detect_action_;
  std::string hang_after_;
  std::string grace_ = "10s";
  std::vector<std::string> environment_;
  std::string environment_file_;
  std::string user_;
  std::string directory_;
  bool from_agent_ = false;
  bool detach_ = false;
  bool follow_ = false;
  std::vector<std::string> command_;
};

class StopCommand : public Command {
 public:
  CLI::App* AddTo(CLI::App& app) override {
    CLI::App* command = app.add_subcommand("stop", "End a job that `holdfast run` launched");
    command->footer(kStopFooter);
    command->add_option("JOB", job_, "The job")->required()->check(NameCheck("job"));
    command->add_option("--deadline", deadline_, "Maximum wait for the last version on disk")
        ->type_name("DURATION")
        ->check(DurationCheck())
        ->capture_default_str();
    command->add_flag("--now", now_, "Do not wait for the disk");
    return command;
  }

  Result<ExitCode> Run(Context& context) override {
    HOLDFAST_ASSIGN_OR_RETURN(CoordinatorClient client,
                              CoordinatorClient::Open(context.options, context.clock));
    const int64_t deadline_ms = now_ ? 0 : ParseDurationMs(deadline_).value_or(60'000);
    HOLDFAST_RETURN_IF_ERROR(client.StopRun(job_, deadline_ms));
    return RunFollower(context, client, job_).Follow(false, 0);
  }

 private:
  std::string job_;
  std::string deadline_ = "60s";
  bool now_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeRunCommand() { return std::make_unique<RunCommand>(); }
std::unique_ptr<Command> MakeStopCommand() { return std::make_unique<StopCommand>(); }

}  // namespace holdfast::cli
