#include <fmt/format.h>

#include "base/config.h"
#include "cli/cluster/commands.h"
#include "cli/cluster/coordinator_client.h"
#include "cli/cluster/health.h"
#include "cli/cluster/node_json.h"
#include "cli/cluster/run_json.h"
#include "cli/core/command.h"
#include "cli/core/text.h"
#include "cli/core/version_json.h"

namespace holdfast::cli {

namespace {

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

Json UnderProtectedJson(const coordinator::JobStatus& job) {
  Json versions = Json::array();
  for (const auto& lacks : job.under_protected()) {
    versions.push_back({{"version", VersionJson(FromProto(lacks.version()))},
                        {"shards", lacks.shards()},
                        {"present", lacks.present()},
                        {"ordered", lacks.ordered()},
                        {"why", lacks.why()}});
  }
  return versions;
}

/// The JSON form of the jobs. testing/cluster and scripts read it: fields may be added, never
/// renamed.
Json JobsJson(const ClusterSnapshot& snapshot) {
  Json jobs = Json::array();
  for (const auto& job : snapshot.status.jobs()) {
    JobHealth seen = HealthOf(snapshot, job);
    jobs.push_back({{"job", job.job()},
                    {"uid", job.uid()},
                    {"phase", seen.phase},
                    {"state", job.state()},
                    {"ended_at", TimeJson(job.ended_wall_nanos())},
                    {"not_durable_why", job.not_durable_why()},
                    {"keep_last", job.keep_last()},
                    {"keep_every", job.keep_every()},
                    {"incarnation", job.incarnation()},
                    {"world", job.world()},
                    {"ranks_joined", job.ranks_joined()},
                    {"memory_committed", VersionJson(FromProto(job.memory_committed()))},
                    {"memory_committed_at", TimeJson(seen.memory_committed_wall_nanos)},
                    {"peer_committed", VersionJson(FromProto(job.peer_committed()))},
                    {"peer_committed_at", TimeJson(seen.peer_committed_wall_nanos)},
                    {"peer_target", VersionJson(FromProto(job.peer_target()))},
                    {"peer_target_held", job.peer_target_held()},
                    {"peer_members", job.peer_members()},
                    {"not_protected_why", job.not_protected_why()},
                    {"disk_committed", VersionJson(FromProto(job.disk_committed()))},
                    {"disk_committed_at", TimeJson(seen.disk_committed_wall_nanos)},
                    {"committed_at", TimeJson(job.committed_wall_nanos())},
                    {"restorable", VersionJson(FromProto(job.restorable()))},
                    {"restorable_tier", TierJson(job.restorable_tier())},
                    {"not_restorable_why", job.not_restorable_why()},
                    {"under_protected", UnderProtectedJson(job)},
                    {"pending_versions", job.pending_versions()},
                    {"pending_bytes", seen.pending_bytes},
                    {"committed_total", job.committed_total()},
                    {"aborted_total", job.aborted_total()},
                    {"newest_seen_step", job.newest_seen_step()}});
  }
  return jobs;
}

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
  std::string text = VersionText(FromProto(version));
  return wall_nanos == 0 ? text : text + " (" + AgeText(wall_nanos, now) + ")";
}

/// Shows the farthest tier that a restart would read, since it determines the restart's duration.
Cell RestorableCell(const coordinator::JobStatus& job) {
  VersionId version = FromProto(job.restorable());
  if (version == VersionId{}) return {"none", Tone::kBad};
  std::string text = ToString(version);
  if (job.restorable_tier() != 0)
    text += " (" + std::string(ToString(static_cast<Tier>(job.restorable_tier()))) + ")";
  return {text, Tone::kGood};
}

/// The progress of the next version at tier peer: members that have their parity, of all members.
Cell ParityCell(const coordinator::JobStatus& job, bool wide) {
  if (job.peer_members() == 0) return {"none", Tone::kFaint};
  VersionId target = FromProto(job.peer_target());
  if (target == VersionId{}) return {"-"};
  std::string text = fmt::format("{}/{}", job.peer_target_held(), job.peer_members());
  return {wide ? text + " of " + ToString(target) : text};
}

/// Writes one row per job; counters only in wide output.
void WriteJobs(Output& output, const ClusterSnapshot& snapshot) {
  std::vector<Column> columns = {{"JOB", false, true},         {"PHASE", false, false},
                                 {"INC", true, false},         {"RANKS", true, false},
                                 {"MEMORY", false, false},     {"PEER", false, false},
                                 {"PARITY", false, false},     {"DISK", false, false},
                                 {"RESTORABLE", false, false}, {"PENDING", true, false}};
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
    std::vector<Cell> row = {
        {job.job()},
        {seen.phase},
        {std::to_string(job.incarnation())},
        {fmt::format("{}/{}", job.ranks_joined(), job.world())},
        {Committed(job.memory_committed(), seen.memory_committed_wall_nanos, now)},
        {Committed(job.peer_committed(), seen.peer_committed_wall_nanos, now)},
        ParityCell(job, output.wide()),
        {Committed(job.disk_committed(), seen.disk_committed_wall_nanos, now)},
        RestorableCell(job),
        {seen.pending_bytes > 0
             ? fmt::format("{} ({})", job.pending_versions(), FormatBytes(seen.pending_bytes))
             : std::to_string(job.pending_versions())}};
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
    HOLDFAST_ASSIGN_OR_RETURN(CoordinatorClient client, CoordinatorClient::Open(context.options));
    return RunWatched(context, watch_, [&]() { return Frame(context, client); });
  }

 private:
  /// Prints one frame. The queries run one after another, so the versions of a busy job may be a
  /// step ahead of its status.
  Result<ExitCode> Frame(Context& context, CoordinatorClient& client) {
    ClusterSnapshot snapshot;
    HOLDFAST_ASSIGN_OR_RETURN(snapshot.status, client.GetStatus(job_));
    for (const auto& job : snapshot.status.jobs()) {
      HOLDFAST_ASSIGN_OR_RETURN(snapshot.versions[job.job()],
                                client.ListVersions(job.job(), false));
    }
    // A job of another launcher has no run.
    auto runs = client.GetRuns(job_);
    if (!runs && runs.error().code() != ErrorCode::kNotFound) return Fail(runs.error());
    if (runs) snapshot.runs = *std::move(runs);
    snapshot.now_wall_nanos = context.clock.WallNanos();
    int64_t stale_after_nanos = ParseDurationMs(stale_after_).value_or(600'000) * 1'000'000;
    std::vector<Finding> findings = Examine(snapshot, stale_after_nanos);
    HealthLevel level = WorstLevel(findings);
    if (context.output.json()) {
      WriteJson(context.output, snapshot, findings, level);
    } else {
      WriteText(context.output, snapshot, findings, level);
    }
    return level == HealthLevel::kOk ? ExitCode::kOk : ExitCode::kFinding;
  }

  static void WriteJson(Output& output, const ClusterSnapshot& snapshot,
                        const std::vector<Finding>& findings, HealthLevel level) {
    Json found = Json::array();
    for (const Finding& finding : findings) {
      found.push_back({{"code", finding.code},
                       {"level", NameOf(finding.level)},
                       {"subject", finding.subject},
                       {"message", finding.message}});
    }
    output.WriteJson("status", {{"time", FormatUtc(snapshot.now_wall_nanos)},
                                {"health", NameOf(level)},
                                {"findings", found},
                                {"cluster", snapshot.status.cluster()},
                                {"epoch", snapshot.status.epoch()},
                                {"nodes", NodesJson(snapshot.status)},
                                {"quarantine", QuarantineJson(snapshot.runs)},
                                {"runs", RunsJson(snapshot.runs)},
                                {"jobs", JobsJson(snapshot)}});
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
  }

  std::string job_;
  std::string stale_after_ = "10m";
  WatchOptions watch_;
};

}  // namespace

std::unique_ptr<Command> MakeStatusCommand() { return std::make_unique<StatusCommand>(); }

}  // namespace holdfast::cli
