#include "cli/cluster/commands.h"
#include "cli/cluster/coordinator_client.h"
#include "cli/core/command.h"

namespace holdfast::cli {

namespace {

constexpr const char* kPinFooter = R"(
Retention never removes a pinned version, on any tier that has it.

Examples:
  holdfast pin my-job 3-120
  holdfast pin my-job newest          the newest version on disk
  holdfast versions my-job            the column PINNED shows pinned versions
  holdfast unpin my-job 3-120
)";

class PinCommand : public Command {
 public:
  explicit PinCommand(bool pin) : pin_(pin) {}

  CLI::App* AddTo(CLI::App& app) override {
    CLI::App* command = pin_ ? app.add_subcommand("pin", "Keep a version until it is unpinned")
                             : app.add_subcommand("unpin", "Let retention remove a version again");
    command->footer(kPinFooter);
    command->add_option("JOB", job_, "The job")->required()->check(NameCheck("job"));
    command
        ->add_option("VERSION", version_,
                     pin_ ? "As in `holdfast versions`, e.g. 3-120; newest: the newest on disk"
                          : "As in `holdfast versions`, e.g. 3-120")
        ->required()
        ->check(pin_ ? VersionCheck() | CLI::IsMember({"newest"}) : VersionCheck());
    return command;
  }

  Result<ExitCode> Run(Context& context) override {
    HOLDFAST_ASSIGN_OR_RETURN(CoordinatorClient client,
                              CoordinatorClient::Open(context.options, context.clock));
    if (version_ == "newest") {
      HOLDFAST_ASSIGN_OR_RETURN(const VersionId newest, client.PinNewest(job_));
      version_ = ToString(newest);
    } else {
      HOLDFAST_RETURN_IF_ERROR(client.Pin(job_, VersionOf(version_).value_or(VersionId{}), pin_));
    }
    if (context.output.json()) {
      context.output.WriteJson("pin", {{"job", job_}, {"version", version_}, {"pinned", pin_}});
    } else {
      context.output.Write(job_ + "/" + version_ + (pin_ ? " is pinned\n" : " is not pinned\n"));
    }
    return ExitCode::kOk;
  }

 private:
  const bool pin_;
  std::string job_;
  std::string version_;
};

}  // namespace

std::unique_ptr<Command> MakePinCommand(bool pin) { return std::make_unique<PinCommand>(pin); }

}  // namespace holdfast::cli
