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
#include "coordinator/api/tier_fields.h"
#include "coordinator/view/health.h"
#include "coordinator/view/status_json.h"

namespace holdfast::cli {

namespace {

using view::ClusterSnapshot;
using view::Finding;
using view::HealthLevel;
using view::JobHealth;

constexpr const char* kStatusFooter = R"(
The first line begins with the overall state: HOLDFAST_OK, HOLDFAST_WARN or HOLDFAST_ERR. Each
finding below it begins with a stable code (docs/cli.md lists them). The exit code is 2 unless the
state is HOLDFAST_OK. PARITY is how many nodes have their parity of the version that reaches the
tier peer next.

Examples:
  holdfast status                     once
  holdfast status -w                  redrawn every 2 s
  holdfast status -o json -w          one JSON document a line, for a script
  holdfast status my-job -o wide      one job, with counters
)";

/// A node that is down keeps its row, with its last reported values.
void WriteNodes(Output& output, const ClusterSnapshot& snapshot) {
  std::vector<Column> columns = {{"NODE", false, true},
                                 {"STATE", false, false},
                                 {"MEMORY", true, false},
                                 {"DISK", true, false},
                                 {"FREE", true, false}};
  if (output.wide())
    columns.insert(columns.end(), {{"SEEN", true, false}, {"ADDRESS", false, true}});
  Table table(columns);
  for (const auto& node : snapshot.status.nodes()) {
    std::string free = node.alive() ? fmt::format("{}%", node.disk_free_percent()) : "-";
    std::vector<Cell> row = {{node.node()},
                             StateCell(node),
                             {FormatBytes(node.held_memory_bytes())},
                             {FormatBytes(node.held_disk_bytes())},
                             {free}};
    if (output.wide()) {
      row.push_back({AgeText(node.seen_wall_nanos(), snapshot.now_wall_nanos)});
      row.push_back({node.data_address()});
    }
    table.Add(std::move(row));
  }
  if (table.empty()) {
    output.Write("no node has attached yet\n");
  } else {
    output.WriteTable(table);
  }
}

/// "3-120 (2s)"
std::string Committed(const coordinator::Version& version, int64_t wall_nanos, int64_t now) {
  std::string text = VersionText(AnyVersion(version));
  return wall_nanos == 0 ? text : text + " (" + AgeText(wall_nanos, now) + ")";
}

/// The version that is being copied to the tier; none at tiers without copies.
std::optional<VersionId> CopyingTo(const coordinator::JobStatus& job, Tier tier) {
  return tier == Tier::kRemote ? AnyVersion(job.remote_copying()) : std::nullopt;
}

Cell TierCell(const coordinator::JobStatus& job, Tier tier, int64_t wall_nanos, int64_t now) {
  const std::string text = Committed(coord::CommittedAt(job, tier), wall_nanos, now);
  const std::optional<VersionId> copying = CopyingTo(job, tier);
  return {copying ? text + ", copying " + ToString(*copying) : text};
}

/// Shows the farthest tier that a restart would read, since it determines the restart's duration.
Cell RestorableCell(const coordinator::JobStatus& job) {
  const std::optional<VersionId> version = AnyVersion(job.restorable());
  if (!version) return {"none", Tone::kBad};
  std::string text = ToString(*version);
  if (job.restorable_tier() != 0)
    text += " (" + std::string(ToString(static_cast<Tier>(job.restorable_tier()))) + ")";
  return {text, Tone::kGood};
}

/// The progress of the next version at tier peer: members that have their parity, of all members.
Cell ParityCell(const coordinator::JobStatus& job, bool wide) {
  if (job.peer_members() == 0) return {"none", Tone::kFaint};
  const std::optional<VersionId> target = AnyVersion(job.peer_target());
  if (!target) return {"-"};
  std::string text = fmt::format("{}/{}", job.peer_target_held(), job.peer_members());
  return {wide ? text + " of " + ToString(*target) : text};
}

/// The tiers that have a column: a shared one only where a version was or is being copied there, as
/// most clusters have none, and in wide output.
std::vector<Tier> ShownTiers(const coordinator::GetStatusReply& status, bool wide) {
  std::vector<Tier> shown;
  for (const TierTraits& traits : kTierTable) {
    const Tier tier = traits.tier;
    const bool used = std::any_of(status.jobs().begin(), status.jobs().end(), [&](const auto& job) {
      return AnyVersion(coord::CommittedAt(job, tier)) || CopyingTo(job, tier);
    });
    if (wide || used || !IsShared(tier)) shown.push_back(tier);
  }
  return shown;
}

/// The progress of the parity is shown next to the tier that it makes.
bool ShowsParity(Tier tier) { return TraitsOf(tier).reporter == TierReporter::kParity; }

/// Writes one row per job; counters only in wide output.
void WriteJobs(Output& output, const ClusterSnapshot& snapshot) {
  const std::vector<Tier> tiers = ShownTiers(snapshot.status, output.wide());
  std::vector<Column> columns = {
      {"JOB", false, true}, {"PHASE", false, false}, {"INC", true, false}, {"RANKS", true, false}};
  for (const Tier tier : tiers) {
    columns.push_back({TierTitle(tier), false, false});
    if (ShowsParity(tier)) columns.push_back({"PARITY", false, false});
  }
  columns.insert(columns.end(), {{"RESTORABLE", false, false}, {"PENDING", true, false}});
  if (output.wide()) {
    columns.insert(columns.end(), {{"COMMITTED", true, false},
                                   {"ABORTED", true, false},
                                   {"NEWEST STEP", true, false},
                                   {"UID", true, false}});
  }
  Table table(columns);
  for (const auto& job : snapshot.status.jobs()) {
    JobHealth seen = HealthOf(snapshot, job);
    int64_t now = snapshot.now_wall_nanos;
    std::vector<Cell> row = {{job.job()},
                             {seen.phase},
                             {std::to_string(job.incarnation())},
                             {fmt::format("{}/{}", job.ranks_joined(), job.world())}};
    for (const Tier tier : tiers) {
      row.push_back(TierCell(job, tier, seen.committed_wall_nanos[tier], now));
      if (ShowsParity(tier)) row.push_back(ParityCell(job, output.wide()));
    }
    row.push_back(RestorableCell(job));
    row.push_back({seen.pending_bytes > 0 ? fmt::format("{} ({})", job.pending_versions(),
                                                        FormatBytes(seen.pending_bytes))
                                          : std::to_string(job.pending_versions())});
    if (output.wide()) {
      row.push_back({std::to_string(job.committed_total())});
      row.push_back({std::to_string(job.aborted_total())});
      row.push_back({std::to_string(job.newest_seen_step())});
      row.push_back({std::to_string(job.uid())});
    }
    table.Add(std::move(row));
  }
  if (table.empty()) {
    output.Write("no job has connected yet\n");
  } else {
    output.WriteTable(table);
  }
}

class StatusCommand : public Command {
 public:
  CLI::App* AddTo(CLI::App& app) override {
    CLI::App* command =
        app.add_subcommand("status", "Health of nodes and jobs, and restorable versions");
    command->footer(kStatusFooter);
    command->add_option("JOB", job_, "Only this job")->check(NameCheck("job"));
    auto check = [](std::string& value) -> std::string {
      Result<int64_t> ms = ParseDurationMs(value);
      return ms ? "" : ms.error().message();
    };
    command
        ->add_option("--stale-after", stale_after_,
                     "Report a job whose newest commit is older than this")
        ->type_name("DURATION")
        ->check(CLI::Validator(check, "", ""))
        ->capture_default_str();
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
    HOLDFAST_ASSIGN_OR_RETURN(const ClusterSnapshot snapshot,
                              CollectSnapshot(client, job_, context.clock.WallNanos()));
    int64_t stale_after_nanos = ParseDurationMs(stale_after_).value_or(600'000) * 1'000'000;
    std::vector<Finding> findings = Examine(snapshot, stale_after_nanos);
    HealthLevel level = WorstLevel(findings);
    if (context.output.json()) {
      context.output.WriteJson("status", view::StatusDocument(snapshot, findings));
    } else {
      WriteText(context.output, snapshot, findings, level);
    }
    return level == HealthLevel::kOk ? ExitCode::kOk : ExitCode::kFinding;
  }

  static void WriteText(Output& output, const ClusterSnapshot& snapshot,
                        const std::vector<Finding>& findings, HealthLevel level) {
    int64_t alive = 0;
    for (const auto& node : snapshot.status.nodes()) alive += node.alive() ? 1 : 0;
    std::string line =
        fmt::format("{}  cluster {}, coordinator epoch {}, {} of {} nodes up, {}", NameOf(level),
                    Printable(snapshot.status.cluster()), snapshot.status.epoch(), alive,
                    snapshot.status.nodes_size(), Count(snapshot.status.jobs_size(), "job"));
    output.Write(output.Tint(line, ToneOf(level)) + "\n");
    for (const Finding& finding : findings) {
      output.Write("  " + output.Tint(finding.code, ToneOf(finding.level)) + " " +
                   Printable(finding.subject + ": " + finding.message) + "\n");
    }
    output.Write("\n");
    WriteNodes(output, snapshot);
    output.Write("\n");
    WriteJobs(output, snapshot);
    if (snapshot.status.other_jobs().empty()) return;
    output.Write("\nJobs of other users:");
    for (const std::string& job : snapshot.status.other_jobs()) output.Write(" " + Printable(job));
    output.Write("\n");
  }

  std::string job_;
  std::string stale_after_ = "10m";
  WatchOptions watch_;
};

}  // namespace

std::unique_ptr<Command> MakeStatusCommand() { return std::make_unique<StatusCommand>(); }

}  // namespace holdfast::cli
