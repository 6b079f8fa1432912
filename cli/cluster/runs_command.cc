#include <fmt/format.h>

#include "cli/cluster/commands.h"
#include "cli/cluster/coordinator_client.h"
#include "cli/core/command.h"
#include "cli/core/text.h"
#include "cli/core/version_json.h"
#include "coordinator/view/run_json.h"

namespace holdfast::cli {

namespace {

constexpr const char* kRunsFooter = R"(
`holdfast run` starts runs; jobs that torchrun, Slurm or Kubernetes launched have none. The newest
run of each job is listed. PHASE is waiting (for nodes), starting, running, stopping, finished,
failed or stopped. WHY is what a run waits for, or why it ended. The exit code is 2 when a run waits
or has failed.

Examples:
  holdfast runs                       all runs
  holdfast runs my-job -o wide        one run, with its nodes and its command
  holdfast runs -o json | jq -r '.runs[] | select(.phase == "failed").job'
)";

Tone ToneOfPhase(const std::string& phase) {
  if (phase == "running") return Tone::kGood;
  if (phase == "failed") return Tone::kBad;
  if (phase == "waiting") return Tone::kWarn;
  return phase == "finished" || phase == "stopped" ? Tone::kFaint : Tone::kPlain;
}

class RunsCommand : public Command {
 public:
  CLI::App* AddTo(CLI::App& app) override {
    CLI::App* command = app.add_subcommand("runs", "Runs of jobs and their state");
    command->footer(kRunsFooter);
    command->add_option("JOB", job_, "Only this job")->check(NameCheck("job"));
    watch_.AddTo(*command);
    return command;
  }

  Result<ExitCode> Run(Context& context) override {
    HOLDFAST_ASSIGN_OR_RETURN(CoordinatorClient client,
                              CoordinatorClient::Open(context.options, context.clock));
    return RunWatched(context, watch_, [&]() -> Result<ExitCode> {
      HOLDFAST_ASSIGN_OR_RETURN(const auto reply, client.GetRuns(job_));
      Write(context, reply);
      for (const auto& run : reply.runs()) {
        if (run.phase() == "waiting" || run.phase() == "failed") return ExitCode::kFinding;
      }
      return ExitCode::kOk;
    });
  }

 private:
  static void Write(Context& context, const coordinator::GetRunsReply& reply) {
    Output& output = context.output;
    const int64_t now = context.clock.WallNanos();
    if (output.json()) {
      output.WriteJson("runs", view::RunsDocument(reply, now));
      return;
    }
    std::vector<Column> columns = {{"JOB", false, true},      {"PHASE", false, false},
                                   {"RUN", false, false},     {"NODES", true, false},
                                   {"RESTARTS", true, false}, {"STARTED", true, false}};
    if (output.wide()) {
      columns.insert(columns.end(), {{"ON", false, true}, {"COMMAND", false, true}});
    }
    columns.push_back({"WHY", false, true});
    Table table(columns);
    for (const auto& run : reply.runs()) {
      const auto& spec = run.spec();
      std::vector<Cell> row = {{spec.job()},
                               {run.phase(), ToneOfPhase(run.phase())},
                               {run.run_id().empty() ? "-" : run.run_id()},
                               {std::to_string(spec.nodes())},
                               {fmt::format("{}/{}", run.restarts(), spec.restarts_max())},
                               {AgeText(run.started_wall_nanos(), now)}};
      if (output.wide()) {
        row.push_back({Join({run.nodes().begin(), run.nodes().end()}, ",")});
        row.push_back({Join({spec.command().begin(), spec.command().end()}, " ")});
      }
      row.push_back({run.why()});
      table.Add(std::move(row));
    }
    if (table.empty()) {
      output.Write("no job was launched with `holdfast run`\n");
    } else {
      output.WriteTable(table);
    }
  }

  std::string job_;
  WatchOptions watch_;
};

}  // namespace

std::unique_ptr<Command> MakeRunsCommand() { return std::make_unique<RunsCommand>(); }

}  // namespace holdfast::cli
