#include "cli/cluster/agent_client.h"
#include "cli/cluster/commands.h"
#include "cli/cluster/coordinator_client.h"
#include "cli/core/command.h"

namespace holdfast::cli {

namespace {

constexpr const char* kDumpFooter = R"(
The fields may change between releases, so scripts must not depend on them.

Examples:
  holdfast dump n1
  holdfast dump n1 | jq .
)";

class DumpCommand : public Command {
 public:
  CLI::App* AddTo(CLI::App& app) override {
    CLI::App* command = app.add_subcommand("dump", "An agent's live state as JSON");
    command->footer(kDumpFooter);
    command->add_option("NODE", node_, "The node, as in `holdfast status`")
        ->required()
        ->check(NameCheck("node"));
    return command;
  }

  Result<ExitCode> Run(Context& context) override {
    HOLDFAST_ASSIGN_OR_RETURN(CoordinatorClient client,
                              CoordinatorClient::Open(context.options, context.clock));
    HOLDFAST_ASSIGN_OR_RETURN(auto status, client.GetStatus(""));
    std::string address;
    bool known = false;
    for (const auto& node : status.nodes()) {
      if (node.node() != node_) continue;
      known = true;
      if (node.alive()) address = node.data_address();
    }
    if (!known)
      return Fail(NotFoundError("no node '" + node_ + "'; `holdfast status` lists the nodes"));
    if (address.empty())
      return Fail(UnavailableError("node " + node_ + " is down: its agent does not answer"));
    HOLDFAST_ASSIGN_OR_RETURN(AgentClient agent,
                              AgentClient::Open(node_, address, context.options, context.clock));
    HOLDFAST_ASSIGN_OR_RETURN(std::string text, agent.Dump());
    Json dump = Json::parse(text, nullptr, false);
    if (dump.is_discarded())
      return Fail(InternalError("the agent of node " + node_ + " sent a dump that is not JSON"));
    context.output.WriteJson("dump", {{"node", node_}, {"dump", dump}});
    return ExitCode::kOk;
  }

 private:
  std::string node_;
};

}  // namespace

std::unique_ptr<Command> MakeDumpCommand() { return std::make_unique<DumpCommand>(); }

}  // namespace holdfast::cli
