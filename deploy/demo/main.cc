#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>

#include "base/config.h"
#include "base/random.h"
#include "cli/cluster/coordinator_client.h"
#include "cli/core/command.h"
#include "cli/core/text.h"
#include "faults/drill/report.h"
#include "faults/drill/runner.h"
#include "testing/cluster/cluster.h"
#include "testing/cluster/small_disk.h"
#include "testing/cluster/training.h"

namespace holdfast::demo {
namespace {
using faults::DrillKind;
using faults::DrillReport;
using faults::DrillTarget;
using local::Cluster;
using nlohmann::json;
using std::chrono::milliseconds;

constexpr milliseconds kTimeout(300'000);
constexpr const char* kJob = "charlm";
constexpr int kNodes = 4;
constexpr int kSmallDiskNode = 3;

struct Failure {
  DrillKind kind;
  std::string what;
  DrillTarget target;
  std::optional<int64_t> duration_ms;
};

const std::vector<Failure>& Failures() {
  static const std::vector<Failure> all = {
      {DrillKind::kKillRank, "a rank is killed", {2, "", ""}, {}},
      {DrillKind::kHangRank, "a rank stops without an error", {1, "", ""}, {}},
      {DrillKind::kKillAgent,
       "an agent is killed; the keeper holds its memory",
       {{}, "n1", ""},
       {}},
      {DrillKind::kKillCoordinator, "the coordinator is killed", {}, {}},
      {DrillKind::kKillNode,
       "a node is lost: agent, keeper, trainer and all memory",
       {{}, "n2", ""},
       4'000},
      {DrillKind::kCorruptShard, "a bit of the newest shard on disk flips", {0, "", ""}, {}},
      {DrillKind::kFillDisk, "a node's disk is full", {{}, "n3", ""}, 6'000},
      {DrillKind::kPowerLoss, "all processes are killed at once, the memory is lost", {}, {}},
  };
  return all;
}

/// The results of the demo.
struct Results {
  std::vector<DrillReport> drills;
  std::vector<std::string> skipped;  // drills that this machine cannot run, with the reason
  bool bit_identical = false;        // the final parameters equal the baseline's byte for byte
  uint64_t steps = 0;
  uint64_t restarts = 0;  // by `holdfast run`
  uint64_t parameter_bytes = 0;
  double seconds = 0;
};

/// Each drill is an object as `holdfast drill -o json` prints it.
std::string ToJson(const Results& results) {
  holdfast::Json drills = holdfast::Json::array();
  for (const DrillReport& report : results.drills) drills.push_back(faults::DrillJson(report));
  const holdfast::Json document = {{"schema", 3},
                                   {"bit_identical", results.bit_identical},
                                   {"steps", results.steps},
                                   {"restarts", results.restarts},
                                   {"parameter_bytes", results.parameter_bytes},
                                   {"seconds", results.seconds},
                                   {"drills", std::move(drills)},
                                   {"skipped", results.skipped}};
  return document.dump(2) + "\n";
}

struct DemoOptions {
  std::string json_path;
  std::vector<std::string> drills;
  uint64_t steps = 2'000;
  uint64_t params = 50'000;
  uint64_t step_ms = 40;
  bool keep = false;
};

/// Kills every process that has `root` in its arguments: processes that a drill has restarted are
/// not children of this program.
void EndProcessesOf(const std::string& root) {
  const auto count = [&] {
    int found = 0;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
      const std::string name = entry.path().filename();
      if (name.find_first_not_of("0123456789") != std::string::npos) continue;
      const std::string arguments = local::ReadAll(entry.path() / "cmdline");
      if (arguments.find(root) == std::string::npos || std::stoi(name) == ::getpid()) continue;
      ++found;
      ::kill(std::stoi(name), SIGKILL);
    }
    return found;
  };
  local::WaitUntil([&] { return count() == 0; }, milliseconds(20'000));
}

class Demo {
 public:
  explicit Demo(DemoOptions options) : options_(std::move(options)) {}

  Status Run();
  const Results& results() const { return results_; }

 private:
  void Print(const std::string& line) {
    double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    std::printf("%7.2f s  %s\n", seconds, line.c_str());
    std::fflush(stdout);
  }
  Status TrainUninterrupted();
  Status RunJob(Cluster& cluster, bool has_small_disk);
  Status Launch(Cluster& cluster);
  Status RunDrill(Cluster& cluster, const Failure& failure);
  Result<DrillReport> InjectAndMeasure(Cluster& cluster, const Failure& failure);
  /// Runs a CLI command. Returns its JSON, or Aborted with its error text.
  Result<json> RunCommand(Cluster& cluster, std::vector<std::string> arguments);
  uint64_t NewestStep(Cluster& cluster);

  DemoOptions options_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  Results results_;
  std::string expected_;
};

Status Demo::TrainUninterrupted() {
  Print(fmt::format("training {} steps without interruption, without checkpoints, for comparison",
                    options_.steps));
  local::TrainingOptions training;
  training.world = kNodes;
  training.steps = options_.steps;
  training.params = options_.params;
  HOLDFAST_ASSIGN_OR_RETURN(expected_, local::UninterruptedParameters(training, kTimeout));
  results_.parameter_bytes = expected_.size();
  Print(fmt::format("done: {} of parameters", FormatBytes(expected_.size())));
  return Status::Ok();
}

Result<json> Demo::RunCommand(Cluster& cluster, std::vector<std::string> arguments) {
  arguments.insert(arguments.end(), {"-o", "json"});
  HOLDFAST_ASSIGN_OR_RETURN(const Cluster::CliResult answer, cluster.Cli(arguments, kTimeout));
  json parsed = json::parse(answer.out, nullptr, false);
  if (!parsed.is_object()) return Fail(AbortedError(answer.errors));
  return parsed;
}

uint64_t Demo::NewestStep(Cluster& cluster) {
  auto status = RunCommand(cluster, {"status", kJob});
  if (!status || (*status)["jobs"].empty()) return 0;
  return (*status)["jobs"][0].value("newest_seen_step", uint64_t{0});
}

Status Demo::Launch(Cluster& cluster) {
  const std::string meet = cluster.root() + "/meet";
  std::filesystem::create_directories(meet);
  HOLDFAST_ASSIGN_OR_RETURN(const Cluster::CliResult ran,
                            cluster.Cli({"run",
                                         "--job",
                                         kJob,
                                         "--nnodes",
                                         std::to_string(kNodes),
                                         "--grace",
                                         "2s",
                                         "--max-restarts",
                                         "100",
                                         "--detach",
                                         "--",
                                         local::BinaryDir() + "/holdfast-charlm",
                                         "--rendezvous",
                                         meet,
                                         "--steps",
                                         std::to_string(options_.steps),
                                         "--params",
                                         std::to_string(options_.params),
                                         "--step-sleep-ms",
                                         std::to_string(options_.step_ms),
                                         "--final",
                                         cluster.root() + "/final"}));
  if (ran.exit_code != 0) return AbortedError("holdfast run: " + ran.errors);
  if (!local::WaitUntil([&] { return NewestStep(cluster) >= 10; }, kTimeout)) {
    return DeadlineExceededError("the job did not complete 10 steps; see " +
                                 cluster.CoordinatorLog());
  }
  return Status::Ok();
}

Result<DrillReport> Demo::InjectAndMeasure(Cluster& cluster, const Failure& failure) {
  cli::GlobalOptions options;
  options.endpoint = cluster.endpoint();
  cli::Output output(cli::Format::kTable, {});
  cli::Context context{options, output, Clock::Real()};
  HOLDFAST_ASSIGN_OR_RETURN(auto client, cli::CoordinatorClient::Open(options, context.clock));
  const faults::InjectorAddresses injectors;
  faults::DrillRunner runner(context, client, injectors, kJob);
  faults::DrillRequest request;
  request.kind = failure.kind;
  request.target = failure.target;
  request.duration_ms = failure.duration_ms;
  HOLDFAST_ASSIGN_OR_RETURN(faults::DrillPlan plan, runner.Plan(request, RandomSeed() >> 32));
  HOLDFAST_ASSIGN_OR_RETURN(const std::string what, runner.Rehearse(&plan));
  Print("  " + what);
  HOLDFAST_ASSIGN_OR_RETURN(DrillReport report, runner.Run(plan, kTimeout.count()));
  faults::Judge({}, &report);
  return report;
}

Status Demo::RunDrill(Cluster& cluster, const Failure& failure) {
  const std::string name = faults::TraitsOf(failure.kind).name;
  Print(fmt::format("step {}. DRILL {}: {}", NewestStep(cluster), name, failure.what));
  auto report = InjectAndMeasure(cluster, failure);
  if (!report) return report.error().WithContext("drill " + name);
  if (report->incident) {
    Print(fmt::format("  incident: {}, detected after {}, first new step after {}",
                      report->incident_kind, cli::FormatSeconds(report->detect_ms),
                      cli::FormatSeconds(report->recover_ms)));
  }
  const bool passed = report->missed.empty();
  const std::string missed = passed ? "" : report->missed[0];
  results_.drills.push_back(*std::move(report));
  return passed ? Status::Ok() : AbortedError("drill " + name + " missed " + missed);
}

Status Demo::RunJob(Cluster& cluster, bool has_small_disk) {
  HOLDFAST_RETURN_IF_ERROR(cluster.Start());
  Print(fmt::format("started a coordinator and {} agents in {}", cluster.nodes(), cluster.root()));
  HOLDFAST_RETURN_IF_ERROR(Launch(cluster));
  Print(
      "`holdfast run` has launched four ranks that checkpoint every step, and restarts them after "
      "failures");
  for (const Failure& failure : Failures()) {
    const std::string name = faults::TraitsOf(failure.kind).name;
    const auto& wanted = options_.drills;
    if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), name) == wanted.end()) continue;
    if (failure.kind == DrillKind::kFillDisk && !has_small_disk) {
      results_.skipped.push_back(name + ": no small disk: needs root and a loop device");
      continue;
    }
    HOLDFAST_RETURN_IF_ERROR(RunDrill(cluster, failure));
  }
  Print("all drills are done; training to the end");
  HOLDFAST_ASSIGN_OR_RETURN(
      const Cluster::CliResult followed,
      cluster.Cli({"run", "--follow", "--job", kJob},
                  kTimeout + milliseconds(options_.steps * (options_.step_ms + 20))));
  if (followed.exit_code != 0) {
    return AbortedError("the job did not finish: " + followed.errors + followed.out);
  }
  results_.steps = NewestStep(cluster);
  const std::string final = local::ReadAll(cluster.root() + "/final");
  results_.bit_identical = !final.empty() && final == expected_;
  for (const DrillReport& report : results_.drills) {
    results_.restarts += report.restored ? 1 : 0;
  }
  return Status::Ok();
}

Status Demo::Run() {
  HOLDFAST_RETURN_IF_ERROR(TrainUninterrupted());
  local::ClusterOptions options;
  options.injectors = true;
  HOLDFAST_ASSIGN_OR_RETURN(options.root, local::MakeTempDir("holdfast-demo"));
  auto small_disk = local::SmallDisk::Make(options.root, 64ULL << 20);
  if (small_disk) options.data_dir_of[kSmallDiskNode] = small_disk->path() + "/data";
  options.arena_bytes = 64ULL << 20;
  Status status;
  {
    Cluster cluster(options);
    status = RunJob(cluster, small_disk.has_value());
    if (!status.ok()) static_cast<void>(cluster.Cli({"stop", kJob, "--now"}).has_value());
  }
  EndProcessesOf(options.root);
  if (options_.keep || !status.ok()) {
    Print("data and logs are kept in " + options.root);
  } else {
    if (small_disk) local::SmallDisk unmounted = std::move(*small_disk);
    std::error_code ignored;
    std::filesystem::remove_all(options.root, ignored);
  }
  results_.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  return status;
}

int Main(int argc, char** argv) {
  DemoOptions options;
  CLI::App app(
      "Runs a training job that checkpoints every step with `holdfast run`, injects one failure "
      "after another as `holdfast drill` does, and compares the job's final parameters with an "
      "uninterrupted run's.");
  app.add_option("--json", options.json_path, "also write the report as JSON");
  app.add_option("--drill", options.drills, "only these drills (repeatable); default: all");
  app.add_option("--steps", options.steps, "steps to train")->capture_default_str();
  app.add_option("--params", options.params, "parameters of the model")->capture_default_str();
  app.add_option("--step-ms", options.step_ms, "additional milliseconds per step")
      ->capture_default_str();
  app.add_flag("--keep", options.keep, "keep data and logs");
  CLI11_PARSE(app, argc, argv);

  Demo demo(options);
  Status status = demo.Run();
  const Results& results = demo.results();
  std::printf("\n%s\n%s", faults::DrillTable(results.drills).Render(0, false).c_str(),
              faults::DrillNotes(results.drills).c_str());
  for (const std::string& skipped : results.skipped) std::printf("skipped %s\n", skipped.c_str());
  if (!status.ok()) std::printf("%s\n", status.ToString().c_str());
  const bool good = status.ok() && results.bit_identical;
  std::printf("VERDICT: final parameters %s to the uninterrupted run's\n",
              results.bit_identical ? "bit-identical" : "NOT identical");
  if (!options.json_path.empty()) std::ofstream(options.json_path) << ToJson(results);
  return good ? 0 : 1;
}

}  // namespace
}  // namespace holdfast::demo

// An exception may end this program.  NOLINTNEXTLINE(bugprone-exception-escape)
int main(int argc, char** argv) { return holdfast::demo::Main(argc, argv); }
