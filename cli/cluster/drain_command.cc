#include <fmt/format.h>

#include <algorithm>

#include "cli/cluster/commands.h"
#include "cli/cluster/coordinator_client.h"
#include "cli/core/command.h"
#include "cli/core/interrupt.h"
#include "cli/core/text.h"
#include "cli/core/version_json.h"
#include "coordinator/api/convert.h"

namespace holdfast::cli {

namespace {

constexpr const char* kDrainFooter = R"(
Ahead of maintenance: the node gets no workers and no place in a parity group, other nodes rebuild
or copy its shards, and copies to tier remote are due at once. The drain outlives the node's agent
and the coordinator, until --undo. The node is safe to stop if the newest version of every job
survives without this node and the other drained ones, with all its redundancy. The last line is the
answer.

A machine that is gone for good: --remove takes its node, which must be down, off the list. If a
version needs the node, --yes is required. Once an agent attaches under the name, the node is back.

Exit code 0: safe to stop, or removed. 2: not yet, or not without less redundancy; the lines name
each job and what to do.

Examples:
  holdfast drain n3 --wait 10m --why "new fan"    returns as soon as n3 is safe to stop
  holdfast drain n3 --move-runs --wait 10m        restarts runs with workers on n3 elsewhere first
  holdfast drain n3 --check                       asks, and changes nothing
  holdfast drain n3 --undo                        after the maintenance
  holdfast drain n3 --remove                      the machine will not come back
)";

constexpr int64_t kDrainPollMs = 500;
constexpr uint32_t kDrainSafe = 1;
constexpr uint32_t kDrainLessProtected = 2;

using coordinator::DrainedJob;
using coordinator::GetDrainReply;

std::string DrainStateOf(const DrainedJob& job) {
  if (job.state() == kDrainSafe) return "safe";
  return job.state() == kDrainLessProtected ? "less protected" : "not safe";
}

class DrainCommand : public Command {
 public:
  CLI::App* AddTo(CLI::App& app) override {
    CLI::App* command = app.add_subcommand("drain", "Make a node safe to stop");
    command->footer(kDrainFooter);
    command->add_option("NODE", node_, "The node")->required()->check(NameCheck("node"));
    auto* wait = command->add_option("--wait", wait_, "Wait until the node is safe to stop")
                     ->check(DurationCheck());
    command->add_option("--why", why_, "The reason, for the record");
    auto* move = command->add_flag("--move-runs", move_runs_,
                                   "Restart runs with workers on the node on other nodes");
    command->add_flag("--accept-less", accept_less_,
                      "Also safe: versions that survive, with less redundancy until later");
    auto* undo = command->add_flag("--undo", undo_, "End the drain");
    auto* check = command->add_flag("--check", check_, "Ask only");
    auto* remove = command->add_flag("--remove", remove_, "Remove a node that is gone for good");
    command->add_flag("--yes", yes_, "Remove the node even if a version needs it")->needs(remove);
    undo->excludes(wait)->excludes(move)->excludes(check)->excludes(remove);
    check->excludes(move)->excludes(remove);
    remove->excludes(wait)->excludes(move);
    return command;
  }

  Result<ExitCode> Run(Context& context) override {
    HOLDFAST_ASSIGN_OR_RETURN(CoordinatorClient client,
                              CoordinatorClient::Open(context.options, context.clock));
    if (remove_) return Remove(context, client);
    if (undo_) {
      HOLDFAST_RETURN_IF_ERROR(client.Drain(node_, false, "", false));
      if (context.output.json()) {
        context.output.WriteJson("drain", {{"node", node_}, {"draining", false}});
      } else {
        context.output.Write(node_ + " is no longer drained\n");
      }
      return ExitCode::kOk;
    }
    int64_t left_ms = 0;
    if (!wait_.empty()) {
      HOLDFAST_ASSIGN_OR_RETURN(left_ms, ParseDurationMs(wait_));
    }
    if (!check_) {
      HOLDFAST_RETURN_IF_ERROR(
          client.Drain(node_, true, why_.empty() ? "by an operator" : why_, move_runs_));
    }
    std::string shown;
    for (;;) {
      HOLDFAST_ASSIGN_OR_RETURN(const GetDrainReply reply, client.GetDrain(node_));
      if (IsSafe(reply) || left_ms <= 0) return Show(context, reply);
      const std::string progress = ProgressOf(reply);
      if (!context.output.json() && progress != shown) context.output.Write(progress);
      shown = progress;
      HOLDFAST_RETURN_IF_ERROR(context.output.Flush());
      HOLDFAST_RETURN_IF_ERROR(Interrupt::SleepFor(std::min(left_ms, kDrainPollMs)));
      left_ms -= kDrainPollMs;
    }
  }

 private:
  Result<ExitCode> Remove(Context& context, CoordinatorClient& client) const {
    HOLDFAST_ASSIGN_OR_RETURN(const GetDrainReply before, client.GetDrain(node_));
    const bool needed = std::ranges::any_of(before.jobs(), [](const DrainedJob& job) {
      return job.state() != kDrainSafe && job.state() != kDrainLessProtected;
    });
    if (needed && !before.alive() && !yes_) {
      HOLDFAST_ASSIGN_OR_RETURN(const ExitCode code, Show(context, before));
      if (!context.output.json()) {
        context.output.Write("not removed: --yes removes it all the same\n");
      }
      return code;
    }
    HOLDFAST_RETURN_IF_ERROR(
        client.RemoveNode(node_, why_.empty() ? "removed by an operator" : why_));
    HOLDFAST_ASSIGN_OR_RETURN(const GetDrainReply after, client.GetDrain(node_));
    if (!after.removed()) {
      return Fail(FailedPreconditionError(
          after.alive() ? "the agent of node " + node_ + " has just attached: the node is back"
                        : "the coordinator's release cannot remove nodes: the node is drained; "
                          "upgrade the coordinator"));
    }
    if (context.output.json()) {
      context.output.WriteJson("drain", {{"node", node_}, {"draining", true}, {"removed", true}});
    } else {
      context.output.Write(
          fmt::format("removed {0}; `holdfast revoke agent {0}` refuses its "
                      "certificates\n",
                      node_));
    }
    return ExitCode::kOk;
  }

  bool IsSafe(const DrainedJob& job) const {
    return job.state() == kDrainSafe || (job.state() == kDrainLessProtected && accept_less_);
  }
  bool IsSafe(const GetDrainReply& reply) const {
    return std::ranges::all_of(reply.jobs(), [this](const DrainedJob& job) { return IsSafe(job); });
  }

  std::string ProgressOf(const GetDrainReply& reply) const {
    std::string text;
    for (const DrainedJob& job : reply.jobs()) {
      if (IsSafe(job)) continue;
      text += fmt::format("waits for {}: {}", job.job(), DrainStateOf(job));
      if (job.writing() != 0) {
        text += fmt::format(", {} shard{} to write", job.writing(), job.writing() == 1 ? "" : "s");
      }
      text += "\n";
    }
    return text;
  }

  Result<ExitCode> Show(Context& context, const GetDrainReply& reply) const {
    const bool safe = IsSafe(reply);
    const ExitCode code = safe ? ExitCode::kOk : ExitCode::kFinding;
    if (context.output.json()) {
      Json jobs = Json::array();
      for (const DrainedJob& job : reply.jobs()) {
        jobs.push_back({{"job", job.job()},
                        {"state", DrainStateOf(job)},
                        {"newest", ToString(coord::FromProto(job.newest()))},
                        {"survives", ToString(coord::FromProto(job.safe()))},
                        {"runs_here", job.runs_here()},
                        {"shards_to_write", job.writing()},
                        {"why", job.why()},
                        {"to_do", job.to_do()}});
      }
      Json others = Json::array();
      for (const std::string& other : reply.others()) others.push_back(other);
      context.output.WriteJson("drain", {{"node", node_},
                                         {"draining", reply.draining()},
                                         {"removed", reply.removed()},
                                         {"alive", reply.alive()},
                                         {"why", reply.why()},
                                         {"safe_to_stop", safe},
                                         {"other_nodes", others},
                                         {"jobs", jobs}});
      return code;
    }
    std::string text;
    for (const DrainedJob& job : reply.jobs()) {
      if (job.state() == kDrainSafe) continue;
      text += fmt::format("{}: {}: {}\n", job.job(), DrainStateOf(job), job.why());
      if (!IsSafe(job)) text += fmt::format("  do: {}\n", job.to_do());
    }
    for (const DrainedJob& job : reply.jobs()) {
      if (job.runs_here()) {
        text += fmt::format("{}: its ranks run on the node, and the job restarts\n", job.job());
      }
    }
    if (!reply.others().empty()) {
      text += fmt::format("together with the other drained nodes: {}\n",
                          Join({reply.others().begin(), reply.others().end()}, ", "));
    }
    text += fmt::format("{} {}\n", safe ? "safe to stop" : "not safe to stop", node_);
    context.output.Write(text);
    return code;
  }

  std::string node_;
  std::string wait_;
  std::string why_;
  bool move_runs_ = false;
  bool accept_less_ = false;
  bool undo_ = false;
  bool check_ = false;
  bool remove_ = false;
  bool yes_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeDrainCommand() { return std::make_unique<DrainCommand>(); }

}  // namespace holdfast::cli
