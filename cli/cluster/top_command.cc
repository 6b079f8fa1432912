#include <fmt/format.h>

#include <algorithm>

#include "base/config.h"
#include "base/tiers.h"
#include "cli/cluster/cells.h"
#include "cli/cluster/commands.h"
#include "cli/cluster/coordinator_client.h"
#include "cli/cluster/snapshot.h"
#include "cli/core/command.h"
#include "cli/core/text.h"
#include "cli/core/version_json.h"
#include "coordinator/view/goodput.h"
#include "coordinator/view/health.h"
#include "coordinator/view/incident_json.h"

namespace holdfast::cli {

namespace {

constexpr const char* kTopFooter = R"(
Shows in a terminal what the page of `holdfast ui` shows, until it is interrupted: findings with
their next command, the age of the newest version at each tier, what it survives, ETTR, the phases
of the last incident, and nodes that need attention. ETTR is the share of time in which a run of
`holdfast run` made progress; steps that were trained again are left out.

Examples:
  holdfast top
  holdfast top my-job
  holdfast top --count 1      one frame
)";

constexpr int64_t kStaleAfterNanos = 600'000'000'000;
constexpr int64_t kHourNanos = 3'600'000'000'000;
constexpr int kBarColumns = 40;

using coordinator::Incident;
using view::ClusterSnapshot;
using view::Finding;

/// The newest committed version that a restart would restore; nullptr: none.
const coordinator::VersionInfo* RestorableOf(const ClusterSnapshot& snapshot,
                                             const coordinator::JobStatus& job) {
  const auto versions = snapshot.versions.find(job.job());
  if (versions == snapshot.versions.end()) return nullptr;
  for (const auto& info : versions->second.versions()) {
    if (FromProto(info.version()) == FromProto(job.restorable())) return &info;
  }
  return nullptr;
}

/// "98.2%", or "-" for a job that `holdfast run` did not start.
std::string EttrText(const ClusterSnapshot& snapshot, const coordinator::JobStatus& job,
                     const std::vector<Incident>& incidents, int64_t window_nanos) {
  const auto& runs = snapshot.runs.runs();
  const auto run = std::find_if(runs.begin(), runs.end(),
                                [&](const auto& one) { return one.spec().job() == job.job(); });
  if (run == runs.end() || run->started_wall_nanos() == 0) return "-";
  const int64_t now = snapshot.now_wall_nanos;
  const int64_t until = job.ended_wall_nanos() > 0 ? job.ended_wall_nanos() : now;
  const view::Goodput goodput = view::Measure(
      incidents, {std::max(run->started_wall_nanos(), now - window_nanos), until, std::nullopt});
  if (goodput.observed_ms <= 0) return "-";
  return fmt::format("{:.1f}%", 100.0 * static_cast<double>(goodput.productive_ms) /
                                    static_cast<double>(goodput.observed_ms));
}

class TopCommand : public Command {
 public:
  CLI::App* AddTo(CLI::App& app) override {
    CLI::App* command = app.add_subcommand("top", "The page of `holdfast ui`, in a terminal");
    command->footer(kTopFooter);
    command->add_option("JOB", job_, "Only this job")->check(NameCheck("job"));
    watch_.AddTo(*command);
    return command;
  }

  Result<ExitCode> Run(Context& context) override {
    if (context.output.json()) {
      return Fail(InvalidArgumentError(
          "`top` is for terminals: `holdfast status -o json` has the same data"));
    }
    HOLDFAST_ASSIGN_OR_RETURN(CoordinatorClient client,
                              CoordinatorClient::Open(context.options, context.clock));
    watch_.watch = true;
    return RunWatched(context, watch_, [&]() { return Frame(context, client); });
  }

 private:
  Result<ExitCode> Frame(Context& context, CoordinatorClient& client) const {
    HOLDFAST_ASSIGN_OR_RETURN(const ClusterSnapshot snapshot,
                              CollectSnapshot(client, job_, context.clock.WallNanos()));
    HOLDFAST_ASSIGN_OR_RETURN(const auto incidents, client.ListIncidents(job_, 0));
    const std::vector<Finding> findings = view::Examine(snapshot, kStaleAfterNanos);
    const view::HealthLevel level = view::WorstLevel(findings);
    Output& output = context.output;
    output.Write(output.Tint(view::NameOf(level), ToneOf(level)) +
                 fmt::format("  cluster {}  {}\n", Printable(snapshot.status.cluster()),
                             FormatUtc(snapshot.now_wall_nanos)));
    for (const Finding& finding : findings) {
      output.Write("  " + output.Tint(finding.code, ToneOf(finding.level)) + " " +
                   Printable(finding.subject + ": " + finding.message) + "\n      > " +
                   Printable(finding.next) + "\n");
    }
    output.Write("\n");
    WriteJobs(output, snapshot, incidents);
    if (incidents.incidents_size() > 0) WriteIncident(output, incidents.incidents(0), snapshot);
    WriteNodes(output, snapshot);
    return level == view::HealthLevel::kOk ? ExitCode::kOk : ExitCode::kFinding;
  }

  static void WriteJobs(Output& output, const ClusterSnapshot& snapshot,
                        const coordinator::ListIncidentsReply& incidents) {
    std::vector<Column> columns = {
        {"JOB", false, true}, {"PHASE", false, false}, {"RANKS", true, false}};
    for (const TierTraits& tier : kTierTable) {
      if (!IsShared(tier.tier)) columns.push_back({TierTitle(tier.tier), true, false});
    }
    columns.insert(columns.end(), {{"NEWEST", false, false},
                                   {"ETTR 1H", true, false},
                                   {"ETTR 1D", true, false},
                                   {"SURVIVES", false, true}});
    Table table(columns);
    const int64_t now = snapshot.now_wall_nanos;
    for (const auto& job : snapshot.status.jobs()) {
      std::vector<Incident> own;
      for (const auto& one : incidents.incidents()) {
        if (one.job() == job.job()) own.push_back(one);
      }
      const view::JobHealth seen = view::HealthOf(snapshot, job);
      const auto* newest = RestorableOf(snapshot, job);
      const bool survives = newest != nullptr && !newest->survives().empty();
      std::vector<Cell> row = {
          {job.job()}, {seen.phase}, {fmt::format("{}/{}", job.ranks_joined(), job.world())}};
      for (const TierTraits& tier : kTierTable) {
        if (IsShared(tier.tier)) continue;
        row.push_back({AgeText(seen.committed_wall_nanos[tier.tier], now)});
      }
      row.push_back({VersionText(AnyVersion(job.restorable()))});
      row.push_back({EttrText(snapshot, job, own, kHourNanos)});
      row.push_back({EttrText(snapshot, job, own, 24 * kHourNanos)});
      row.push_back(survives ? Cell{newest->survives()} : Cell{"nothing", Tone::kWarn});
      table.Add(std::move(row));
    }
    if (table.empty()) {
      output.Write("no job has connected yet\n");
    } else {
      output.WriteTable(table);
    }
  }

  /// The phases of an incident as bars of a common length.
  static void WriteIncident(Output& output, const Incident& incident,
                            const ClusterSnapshot& snapshot) {
    output.Write(fmt::format("\nlast incident {} ({} ago, {}): {}\n", incident.id(),
                             FormatAge(snapshot.now_wall_nanos - incident.wall_nanos()),
                             incident.state(), Printable(incident.what())));
    const std::pair<const char*, std::optional<int64_t>> phases[] = {
        {"detect", AnyNumber(incident.detect_ms())},
        {"decide", AnyNumber(incident.decide_ms())},
        {"stop", AnyNumber(incident.stop_ms())},
        {"place", view::PlaceMs(incident)},
        {"restore", AnyNumber(incident.restore_ms())},
        {"first step", AnyNumber(incident.first_step_ms())}};
    int64_t total_ms = 1;
    for (const auto& [name, ms] : phases) total_ms = std::max(total_ms, ms.value_or(0));
    int64_t before_ms = 0;
    for (const auto& [name, ms] : phases) {
      const int64_t end_ms = std::max(before_ms, ms.value_or(0));
      const int64_t length_ms = end_ms - before_ms;
      const auto columns = static_cast<size_t>(length_ms * kBarColumns / total_ms);
      output.Write(fmt::format("  {:<14}{:>9}  {}\n", name, ms ? FormatSeconds(length_ms) : "-",
                               std::string(columns, '#')));
      before_ms = end_ms;
    }
  }

  /// Only the nodes that need attention: a cluster may have thousands.
  static void WriteNodes(Output& output, const ClusterSnapshot& snapshot) {
    int up = 0;
    for (const auto& node : snapshot.status.nodes()) up += node.alive() ? 1 : 0;
    output.Write(fmt::format("\n{} of {} nodes up, {} in quarantine\n", up,
                             snapshot.status.nodes_size(), snapshot.runs.quarantine_size()));
    for (const auto& node : snapshot.status.nodes()) {
      if (!node.alive()) output.Write("  " + output.Tint("DOWN ", Tone::kBad) + node.node() + "\n");
    }
    for (const auto& node : snapshot.runs.quarantine()) {
      output.Write("  " + output.Tint("quarantine ", Tone::kWarn) + node.node() + ": " +
                   Printable(node.why()) + "\n");
    }
  }

  std::string job_;
  WatchOptions watch_;
};

}  // namespace

std::unique_ptr<Command> MakeTopCommand() { return std::make_unique<TopCommand>(); }

}  // namespace holdfast::cli
