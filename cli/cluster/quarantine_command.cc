#include "cli/cluster/commands.h"
#include "cli/cluster/coordinator_client.h"
#include "cli/core/command.h"
#include "cli/core/interrupt.h"
#include "cli/core/text.h"
#include "cli/core/version_json.h"
#include "coordinator/view/run_json.h"

namespace holdfast::cli {

namespace {

constexpr const char* kQuarantineFooter = R"(
A node in quarantine gets no workers until it is released. The shards on it stay in use. The
coordinator quarantines nodes on which several launches in a row failed, or whose workers cannot be
ended.

With --release the node first tests its processors, its memory and its disks, in about 10 s. It
leaves quarantine when no part has failed. The command waits for the result for up to a minute;
exit code 2: the node stays in quarantine. `holdfast incidents` shows the result of each part.

Examples:
  holdfast quarantine                                 the nodes in quarantine, and why
  holdfast quarantine n7 --why "ECC errors, ticket 42"
  holdfast quarantine n7 --release
  holdfast quarantine n7 --release --untested         at once, without the self-test
)";

constexpr int64_t kTestWaitMs = 60'000;
constexpr int64_t kTestPollMs = 250;

class QuarantineCommand : public Command {
 public:
  CLI::App* AddTo(CLI::App& app) override {
    CLI::App* command = app.add_subcommand("quarantine", "Nodes that get no workers");
    command->footer(kQuarantineFooter);
    command->add_option("NODE", node_, "Quarantine this node")->check(NameCheck("node"));
    command->add_option("--why", why_, "The reason, for the record");
    auto* release =
        command->add_flag("--release", release_, "Release the node when its self-test has passed");
    command->add_flag("--untested", untested_, "With --release: without the self-test")
        ->needs(release);
    return command;
  }

  Result<ExitCode> Run(Context& context) override {
    HOLDFAST_ASSIGN_OR_RETURN(CoordinatorClient client,
                              CoordinatorClient::Open(context.options, context.clock));
    if (!node_.empty()) {
      HOLDFAST_RETURN_IF_ERROR(
          client.Quarantine(node_, !release_, why_.empty() ? "by an operator" : why_, untested_));
    }
    HOLDFAST_ASSIGN_OR_RETURN(auto reply, client.GetRuns(""));
    for (int64_t left_ms = kTestWaitMs; release_ && IsTesting(reply) && left_ms > 0;
         left_ms -= kTestPollMs) {
      HOLDFAST_RETURN_IF_ERROR(Interrupt::SleepFor(kTestPollMs));
      HOLDFAST_ASSIGN_OR_RETURN(reply, client.GetRuns(""));
    }
    const ExitCode code = release_ && Find(reply) != nullptr ? ExitCode::kFinding : ExitCode::kOk;
    if (context.output.json()) {
      context.output.WriteJson("quarantine", {{"nodes", view::QuarantineJson(reply)}});
      return code;
    }
    Table table({{"NODE", false, true},
                 {"SINCE", true, false},
                 {"RELEASE", false, false},
                 {"WHY", false, true}});
    for (const auto& one : reply.quarantine()) {
      table.Add({{one.node()},
                 {AgeText(one.wall_nanos(), context.clock.WallNanos())},
                 {one.testing() ? "after its self-test" : "-"},
                 {one.why()}});
    }
    if (table.empty()) {
      context.output.Write("no node is in quarantine\n");
    } else {
      context.output.WriteTable(table);
    }
    return code;
  }

 private:
  const coordinator::QuarantinedNode* Find(const coordinator::GetRunsReply& reply) const {
    for (const auto& one : reply.quarantine()) {
      if (one.node() == node_) return &one;
    }
    return nullptr;
  }
  bool IsTesting(const coordinator::GetRunsReply& reply) const {
    const auto* found = Find(reply);
    return found != nullptr && found->testing();
  }

  std::string node_;
  std::string why_;
  bool release_ = false;
  bool untested_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeQuarantineCommand() { return std::make_unique<QuarantineCommand>(); }

}  // namespace holdfast::cli
