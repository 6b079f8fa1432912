#include "cli/cluster/commands.h"
#include "cli/cluster/coordinator_client.h"
#include "cli/core/command.h"
#include "cli/core/text.h"
#include "cli/core/version_json.h"
#include "coordinator/view/run_json.h"

namespace holdfast::cli {

namespace {

constexpr const char* kQuarantineFooter = R"(
A node in quarantine gets no workers until it is released. The shards on it stay in use. The
coordinator quarantines nodes on which several launches in a row failed, or whose workers cannot be
ended.

Examples:
  holdfast quarantine                                 the nodes in quarantine, and why
  holdfast quarantine n7 --why "ECC errors, ticket 42"
  holdfast quarantine n7 --release
)";

class QuarantineCommand : public Command {
 public:
  CLI::App* AddTo(CLI::App& app) override {
    CLI::App* command = app.add_subcommand("quarantine", "Nodes that get no workers");
    command->footer(kQuarantineFooter);
    command->add_option("NODE", node_, "Quarantine this node")->check(NameCheck("node"));
    command->add_option("--why", why_, "The reason, for the record");
    command->add_flag("--release", release_, "Release the node: it may get workers again");
    return command;
  }

  Result<ExitCode> Run(Context& context) override {
    HOLDFAST_ASSIGN_OR_RETURN(CoordinatorClient client, CoordinatorClient::Open(context.options));
    if (!node_.empty()) {
      HOLDFAST_RETURN_IF_ERROR(
          client.Quarantine(node_, !release_, why_.empty() ? "by an operator" : why_));
    }
    HOLDFAST_ASSIGN_OR_RETURN(auto reply, client.GetRuns(""));
    if (context.output.json()) {
      context.output.WriteJson("quarantine", {{"nodes", view::QuarantineJson(reply)}});
      return ExitCode::kOk;
    }
    Table table({{"NODE", false, true}, {"SINCE", true, false}, {"WHY", false, true}});
    for (const auto& one : reply.quarantine()) {
      table.Add(
          {{one.node()}, {AgeText(one.wall_nanos(), context.clock.WallNanos())}, {one.why()}});
    }
    if (table.empty()) {
      context.output.Write("no node is in quarantine\n");
    } else {
      context.output.WriteTable(table);
    }
    return ExitCode::kOk;
  }

 private:
  std::string node_;
  std::string why_;
  bool release_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeQuarantineCommand() { return std::make_unique<QuarantineCommand>(); }

}  // namespace holdfast::cli
