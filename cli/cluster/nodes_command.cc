#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/config.h"
#include "cli/cluster/cells.h"
#include "cli/cluster/commands.h"
#include "cli/cluster/coordinator_client.h"
#include "cli/core/command.h"
#include "cli/core/text.h"
#include "cli/core/version_json.h"
#include "coordinator/view/health.h"
#include "coordinator/view/node_json.h"

namespace holdfast::cli {

namespace {

using view::Finding;
using view::HealthLevel;

constexpr const char* kNodesFooter = R"(
GROUP is a parity group of a running job. MEMBER is the node's index in the group, from 0, and the
group's size. SEGMENTS is data+parity of a stripe: the group survives the loss of as many nodes as
it has parity segments. A node with ranks of several jobs has a line for each job. BLAMED is the
number of jobs with an incident in the last week that names the node and at most one other: a free
place of a run goes to the node that the fewest jobs blame. ARENA (with -o wide) is how much of the
node's memory for segments is reserved.

Examples:
  holdfast nodes                      every node
  holdfast nodes n3 -o wide           one node, with labels and addresses
  holdfast nodes -o json | jq -r '.nodes[] | select(.health != "HOLDFAST_OK") | .node'
)";

using coordinator::GetRunsReply;
using coordinator::NodeStatus;
using FindingsByNode = std::map<std::string, std::vector<Finding>>;

FindingsByNode ByNode(const coordinator::GetStatusReply& status, int64_t now) {
  FindingsByNode by_node;
  for (Finding& finding : view::ExamineNodes(status, now)) {
    by_node[finding.subject.substr(finding.subject.find(' ') + 1)].push_back(std::move(finding));
  }
  return by_node;
}

/// Codes only, or with -o wide also the messages.
Cell HealthCell(const std::vector<Finding>& findings, bool wide) {
  if (findings.empty()) return {"ok", Tone::kGood};
  std::vector<std::string> texts;
  for (const Finding& finding : findings) {
    texts.push_back(wide ? finding.code + " " + finding.message : finding.code);
  }
  return {Join(texts, wide ? "; " : ","), ToneOf(WorstLevel(findings))};
}

std::string ArenaText(const NodeStatus& node) {
  if (!node.has_arena()) return "-";
  return FormatBytes(node.arena().reserved_bytes()) + " of " + FormatBytes(node.arena().bytes());
}

std::string LabelsText(const NodeStatus& node) {
  std::vector<std::string> labels;
  for (const auto& [name, value] : node.labels()) labels.push_back(name + "=" + value);
  std::sort(labels.begin(), labels.end());
  return labels.empty() ? "-" : Join(labels, ",");
}

std::vector<Cell> MembershipCells(const coordinator::GroupMembership& membership) {
  return {{fmt::format("{}/{}", membership.job(), membership.group())},
          {fmt::format("{}/{}", membership.position(), membership.members())},
          {fmt::format("{}+{}", membership.members() - membership.parity(), membership.parity())}};
}

class NodesCommand : public Command {
 public:
  CLI::App* AddTo(CLI::App& app) override {
    CLI::App* command = app.add_subcommand("nodes", "The nodes and their parity groups");
    command->footer(kNodesFooter);
    command->add_option("NODE", node_, "Only this node")->check(NameCheck("node"));
    watch_.AddTo(*command);
    return command;
  }

  Result<ExitCode> Run(Context& context) override {
    HOLDFAST_ASSIGN_OR_RETURN(CoordinatorClient client,
                              CoordinatorClient::Open(context.options, context.clock));
    return RunWatched(context, watch_, [&]() { return Frame(context, client); });
  }

 private:
  Result<ExitCode> Frame(Context& context, CoordinatorClient& client) {
    HOLDFAST_ASSIGN_OR_RETURN(const auto status, client.GetStatus(""));
    HOLDFAST_ASSIGN_OR_RETURN(const auto runs, client.GetRuns(""));
    const int64_t now = context.clock.WallNanos();
    FindingsByNode findings = ByNode(status, now);
    std::vector<const NodeStatus*> nodes;
    std::vector<Finding> shown;
    for (const NodeStatus& node : status.nodes()) {
      if (!node_.empty() && node.node() != node_) continue;
      nodes.push_back(&node);
      const std::vector<Finding>& its = findings[node.node()];
      shown.insert(shown.end(), its.begin(), its.end());
    }
    if (!node_.empty() && nodes.empty()) {
      return Fail(
          NotFoundError("there is no node '" + node_ + "': none of this name has attached"));
    }
    if (context.output.json()) {
      WriteJson(context.output, nodes, runs, findings, now);
    } else {
      WriteText(context.output, nodes, runs, findings, now);
    }
    return WorstLevel(shown) == HealthLevel::kOk ? ExitCode::kOk : ExitCode::kFinding;
  }

  static void WriteJson(Output& output, const std::vector<const NodeStatus*>& nodes,
                        const GetRunsReply& runs, FindingsByNode& findings, int64_t now) {
    Json list = Json::array();
    for (const NodeStatus* node : nodes) {
      const std::vector<Finding>& its = findings[node->node()];
      Json codes = Json::array();
      for (const Finding& finding : its) codes.push_back(finding.code);
      Json one = view::NodeJson(*node, view::BlamedBy(runs, node->node()));
      one["health"] = NameOf(WorstLevel(its));
      one["codes"] = codes;
      list.push_back(std::move(one));
    }
    output.WriteJson("nodes", {{"time", FormatUtc(now)}, {"nodes", list}});
  }

  static void WriteText(Output& output, const std::vector<const NodeStatus*>& nodes,
                        const GetRunsReply& runs, FindingsByNode& findings, int64_t now) {
    std::vector<Column> columns = {{"NODE", false, true},     {"STATE", false, false},
                                   {"GROUP", false, true},    {"MEMBER", true, false},
                                   {"SEGMENTS", true, false}, {"MEMORY", true, false},
                                   {"PARITY", true, false},   {"DISK", true, false},
                                   {"BLAMED", true, false},   {"HEALTH", false, true}};
    if (output.wide()) {
      columns.insert(columns.end(), {{"FREE", true, false},
                                     {"ARENA", true, false},
                                     {"SEEN", true, false},
                                     {"LABELS", false, true},
                                     {"ADDRESS", false, true},
                                     {"PEER ADDRESS", false, true}});
    }
    Table table(columns);
    for (const NodeStatus* node : nodes) {
      AddRows(table, *node, view::BlamedBy(runs, node->node()), findings[node->node()], output,
              now);
    }
    if (table.empty()) {
      output.Write("no node has attached yet\n");
    } else {
      output.WriteTable(table);
    }
  }

  /// Adds a row for each membership. Only the first row has the values that do not depend on the
  /// job.
  static void AddRows(Table& table, const NodeStatus& node, uint32_t blamed_by,
                      const std::vector<Finding>& findings, const Output& output, int64_t now) {
    std::vector<Cell> row = {{node.node()}, StateCell(node)};
    const std::vector<Cell> membership = node.memberships().empty()
                                             ? std::vector<Cell>{{"-"}, {"-"}, {"-"}}
                                             : MembershipCells(node.memberships(0));
    row.insert(row.end(), membership.begin(), membership.end());
    row.insert(row.end(), {{FormatBytes(node.held_memory_bytes())},
                           {FormatBytes(node.held_parity_bytes())},
                           {FormatBytes(node.held_disk_bytes())},
                           {std::to_string(blamed_by), blamed_by > 1 ? Tone::kWarn : Tone::kPlain},
                           HealthCell(findings, output.wide())});
    if (output.wide()) {
      row.insert(row.end(), {{node.alive() ? fmt::format("{}%", node.disk_free_percent()) : "-"},
                             {ArenaText(node)},
                             {AgeText(node.seen_wall_nanos(), now)},
                             {LabelsText(node)},
                             {node.data_address()},
                             {node.peer_address().empty() ? "-" : node.peer_address()}});
    }
    table.Add(std::move(row));
    for (int i = 1; i < node.memberships_size(); ++i) {
      std::vector<Cell> further = {{""}, {""}};
      const std::vector<Cell> cells = MembershipCells(node.memberships(i));
      further.insert(further.end(), cells.begin(), cells.end());
      table.Add(std::move(further));
    }
  }

  std::string node_;
  WatchOptions watch_;
};

}  // namespace

std::unique_ptr<Command> MakeNodesCommand() { return std::make_unique<NodesCommand>(); }

}  // namespace holdfast::cli
