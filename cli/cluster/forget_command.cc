#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/cluster/commands.h"
#include "cli/cluster/coordinator_client.h"
#include "cli/core/command.h"

namespace holdfast::cli {

namespace {

constexpr const char* kForgetFooter = R"(
Removes every version of the job on all nodes, in memory and on disk, with its records and its runs.
The name is free again, also for another user. Refused while the job runs. Nodes that are down
remove their shards when they attach again. This cannot be undone: export a version first to keep
it.

Examples:
  holdfast export my-job --format safetensors --to DIR     keep a version
  holdfast forget my-job --yes
)";

class ForgetCommand : public Command {
 public:
  CLI::App* AddTo(CLI::App& app) override {
    CLI::App* command = app.add_subcommand("forget", "Remove an ended job, with all its versions");
    command->footer(kForgetFooter);
    command->add_option("JOB", job_, "The job")->required()->check(NameCheck("job"));
    command->add_flag("--yes", yes_, "Confirm the removal (required)");
    return command;
  }

  Result<ExitCode> Run(Context& context) override {
    if (!yes_) {
      return Fail(InvalidArgumentError(
          fmt::format("this removes every version of {} for good; confirm with --yes", job_)));
    }
    HOLDFAST_ASSIGN_OR_RETURN(CoordinatorClient client,
                              CoordinatorClient::Open(context.options, context.clock));
    HOLDFAST_ASSIGN_OR_RETURN(const auto reply, client.ForgetJob(job_));
    const std::vector<std::string> away(reply.away().begin(), reply.away().end());
    if (context.output.json()) {
      context.output.WriteJson("forget", {{"job", job_}, {"away", away}});
      return ExitCode::kOk;
    }
    context.output.Write(job_ + " is forgotten\n");
    if (!away.empty()) {
      context.output.Write(
          fmt::format("nodes that are down and remove its versions when they attach again: {}\n",
                      fmt::join(away, ", ")));
    }
    return ExitCode::kOk;
  }

 private:
  std::string job_;
  bool yes_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeForgetCommand() { return std::make_unique<ForgetCommand>(); }

}  // namespace holdfast::cli
