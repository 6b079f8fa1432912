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
#include "deploy/demo/report.h"
#include "testing/cluster/cluster.h"
#include "testing/cluster/small_disk.h"
#include "testing/cluster/training.h"

namespace holdfast::demo {
namespace {
using local::Cluster;
using nlohmann::json;
using std::chrono::milliseconds;

constexpr milliseconds kTimeout(300'000);
constexpr const char* kJob = "charlm";
constexpr int kNodes = 4;
constexpr int kSmallDiskNode = 3;

struct Failure {
  std::string name;
  std::string what;
  std::vector<std::string> arguments;  // of `holdfast drill`
};

const std::vector<Failure>& Failures() {
  static const std::vector<Failure> all = {
      {"kill-rank", "a rank is killed", {"--target", "rank", "2"}},
      {"hang-rank", "a rank stops without an error", {"--target", "rank", "1"}},
      {"kill-agent", "an agent is killed; the keeper holds its memory", {"--target", "n1"}},
      {"kill-coordinator", "the coordinator is killed", {}},
      {"kill-node",
       "a node is lost: agent, keeper, trainer and all memory",
       {"--target", "n2", "--duration", "4s"}},
      {"corrupt-shard", "a bit of the newest shard on disk flips", {"--target", "rank", "0"}},
      {"fill-disk", "a node's disk is full", {"--target", "n3", "--duration", "6s"}},
      {"power-loss", "all processes are killed at once, the memory is lost", {}},
  };
  return all;
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
  const Report& report() const { return report_; }

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
  void RunDrill(Cluster& cluster, const Failure& failure);
  /// Runs a CLI command. Returns its JSON, or Aborted with its error text.
  Result<json> RunCommand(Cluster& cluster, std::vector<std::string> arguments);
  uint64_t NewestStep(Cluster& cluster);

  DemoOptions options_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  Report report_;
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
  report_.parameter_bytes = expected_.size();
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

void Demo::RunDrill(Cluster& cluster, const Failure& failure) {
  Print(fmt::format("step {}. DRILL {}: {}", NewestStep(cluster), failure.name, failure.what));
  Report::Row row{.name = failure.name, .drill = {}, .skipped = "", .error = ""};
  std::vector<std::string> arguments = {"drill", failure.name};
  arguments.insert(arguments.end(), failure.arguments.begin(), failure.arguments.end());
  arguments.insert(arguments.end(), {"--job", kJob, "--yes"});
  auto answer = RunCommand(cluster, arguments);
  if (!answer) {
    row.error = answer.error().message();
  } else if (!answer->contains("drills") || (*answer)["drills"].empty()) {
    row.error = "no report: " + answer->dump();
  } else {
    row.drill = (*answer)["drills"][0];
    for (const json& missed : row.drill["missed"]) {
      row.error += (row.error.empty() ? "" : "; ") + missed.dump();
    }
    Print("  " + row.drill.value("what", ""));
    if (row.drill["incident_kind"].is_string()) {
      Print(fmt::format("  incident: {}, detected after {} ms, first new step after {} ms",
                        row.drill["incident_kind"].get<std::string>(),
                        row.drill["detect_ms"].dump(), row.drill["recover_ms"].dump()));
    }
  }
  if (!row.error.empty()) Print("FAILED: " + row.error);
  report_.rows.push_back(std::move(row));
}

Status Demo::RunJob(Cluster& cluster, bool has_small_disk) {
  HOLDFAST_RETURN_IF_ERROR(cluster.Start());
  Print(fmt::format("started a coordinator and {} agents in {}", cluster.nodes(), cluster.root()));
  HOLDFAST_RETURN_IF_ERROR(Launch(cluster));
  Print(
      "`holdfast run` has launched four ranks that checkpoint every step, and restarts them after "
      "failures");
  for (const Failure& failure : Failures()) {
    const bool wanted = options_.drills.empty() ||
                        std::find(options_.drills.begin(), options_.drills.end(), failure.name) !=
                            options_.drills.end();
    if (!wanted) continue;
    if (failure.name == "fill-disk" && !has_small_disk) {
      report_.rows.push_back({failure.name, {}, "no small disk: needs root and a loop device", ""});
      continue;
    }
    RunDrill(cluster, failure);
    if (!report_.rows.back().ok()) return AbortedError("drill " + failure.name + " failed");
  }
  Print("all drills are done; training to the end");
  HOLDFAST_ASSIGN_OR_RETURN(
      const Cluster::CliResult followed,
      cluster.Cli({"run", "--follow", "--job", kJob},
                  kTimeout + milliseconds(options_.steps * (options_.step_ms + 20))));
  if (followed.exit_code != 0) {
    return AbortedError("the job did not finish: " + followed.errors + followed.out);
  }
  report_.steps = NewestStep(cluster);
  const std::string final = local::ReadAll(cluster.root() + "/final");
  report_.bit_identical = !final.empty() && final == expected_;
  for (const Report::Row& row : report_.rows) {
    report_.restarts += row.drill.is_object() && row.drill["restored"].is_string() ? 1 : 0;
  }
  return Status::Ok();
}

Status Demo::Run() {
  HOLDFAST_RETURN_IF_ERROR(TrainUninterrupted());
  local::ClusterOptions options;
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
  report_.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  return status;
}

int Main(int argc, char** argv) {
  DemoOptions options;
  CLI::App app(
      "Runs a training job that checkpoints every step with `holdfast run`, injects one failure "
      "after another with `holdfast drill`, and compares the job's final parameters with an "
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
  std::printf("\n%s\n", ToTable(demo.report()).c_str());
  if (!status.ok()) std::printf("%s\n", status.ToString().c_str());
  const auto& rows = demo.report().rows;
  const bool good = status.ok() && demo.report().bit_identical &&
                    std::all_of(rows.begin(), rows.end(), [](const auto& row) { return row.ok(); });
  std::printf("VERDICT: final parameters %s to the uninterrupted run's\n",
              demo.report().bit_identical ? "bit-identical" : "NOT identical");
  if (!options.json_path.empty()) std::ofstream(options.json_path) << ToJson(demo.report());
  return good ? 0 : 1;
}

}  // namespace
}  // namespace holdfast::demo

// An exception may end this program.  NOLINTNEXTLINE(bugprone-exception-escape)
int main(int argc, char** argv) { return holdfast::demo::Main(argc, argv); }
