#include <fmt/format.h>

#include "cli/cluster/commands.h"
#include "cli/cluster/coordinator_client.h"
#include "cli/core/command.h"
#include "cli/core/text.h"

namespace holdfast::cli {

namespace {

constexpr const char* kRetainFooter = R"(
Replaces the coordinator's [retention] for one job, at once and for all its later starts. Pinned
versions and the newest ones stay under any rule.

Examples:
  holdfast retain my-job --keep-last 10
  holdfast retain my-job --keep-last 2 --keep-every 1000
  holdfast retain my-job --default    return to the coordinator's rule
)";

class RetainCommand : public Command {
 public:
  CLI::App* AddTo(CLI::App& app) override {
    CLI::App* command = app.add_subcommand("retain", "Set how many versions of a job stay on disk");
    command->footer(kRetainFooter);
    command->add_option("JOB", job_, "The job")->required()->check(NameCheck("job"));
    CLI::Option* last = command->add_option("--keep-last", keep_last_, "Newest versions that stay")
                            ->type_name("N")
                            ->check(CLI::Range(1, 1'000'000));
    CLI::Option* every =
        command->add_option("--keep-every", keep_every_, "Also keep versions whose step K divides")
            ->type_name("K")
            ->check(CLI::Range(int64_t{0}, int64_t{1'000'000'000'000}))
            ->needs(last);
    command->add_flag("--default", default_, "Use the coordinator's rule")->excludes(last, every);
    return command;
  }

  Result<ExitCode> Run(Context& context) override {
    if (keep_last_ == 0 && !default_) {
      return Fail(InvalidArgumentError("give --keep-last N or --default"));
    }
    HOLDFAST_ASSIGN_OR_RETURN(CoordinatorClient client,
                              CoordinatorClient::Open(context.options, context.clock));
    const auto last = static_cast<uint64_t>(keep_last_);
    const auto every = static_cast<uint64_t>(keep_every_);
    HOLDFAST_RETURN_IF_ERROR(client.Retain(job_, last, every));
    if (context.output.json()) {
      context.output.WriteJson("retain",
                               {{"job", job_}, {"keep_last", last}, {"keep_every", every}});
    } else if (default_) {
      context.output.Write(job_ + " uses the coordinator's retention rule\n");
    } else {
      const std::string steps =
          every == 0 ? "" : fmt::format(", and those whose step is a multiple of {}", every);
      context.output.Write(
          fmt::format("{} keeps its newest {} on disk{}\n", job_, Count(last, "version"), steps));
    }
    return ExitCode::kOk;
  }

 private:
  std::string job_;
  int64_t keep_last_ = 0;
  int64_t keep_every_ = 0;
  bool default_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeRetainCommand() { return std::make_unique<RetainCommand>(); }

}  // namespace holdfast::cli
