#include <fmt/format.h>

#include "cli/cluster/commands.h"
#include "cli/cluster/coordinator_client.h"
#include "cli/core/command.h"
#include "cli/core/text.h"

namespace holdfast::cli {

namespace {

constexpr const char* kUiFooter = R"(
Prints the address of the coordinator's page, which `ui.listen` of its configuration sets. The page
asks for the token of ui.token_file, if one is set. `holdfast top` shows the same in a terminal.

Examples:
  holdfast ui
  ssh -L 8080:localhost:8080 coordinator-machine    then open http://localhost:8080/
)";

class UiCommand : public Command {
 public:
  CLI::App* AddTo(CLI::App& app) override {
    CLI::App* command = app.add_subcommand("ui", "The address of the coordinator's page");
    command->footer(kUiFooter);
    return command;
  }

  Result<ExitCode> Run(Context& context) override {
    HOLDFAST_ASSIGN_OR_RETURN(CoordinatorClient client,
                              CoordinatorClient::Open(context.options, context.clock));
    HOLDFAST_ASSIGN_OR_RETURN(const auto status, client.GetStatus(""));
    if (status.page_url().empty()) {
      return Fail(
          NotFoundError("the coordinator serves no page: set ui.listen in its configuration, e.g. "
                        "\"127.0.0.1:8080\", and start it again"));
    }
    if (context.output.json()) {
      context.output.WriteJson("ui", {{"url", status.page_url()}});
    } else {
      context.output.Write(Printable(status.page_url()) + "\n");
    }
    return ExitCode::kOk;
  }
};

}  // namespace

std::unique_ptr<Command> MakeUiCommand() { return std::make_unique<UiCommand>(); }

}  // namespace holdfast::cli
