#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>

#include "deploy/demo/report.h"
#include "deploy/local/cluster.h"
#include "deploy/local/drills.h"
#include "deploy/local/small_disk.h"
#include "deploy/local/training.h"
#include "storage/base/config.h"

namespace holdfast::demo {
namespace {
using local::Cluster;
using local::Training;
using std::chrono::milliseconds;
constexpr milliseconds kFinishTimeout(300'000);

struct DemoOptions {
  std::string json_path;
  std::vector<std::string> drills;
  uint64_t steps = 600;
  uint64_t params = 50'000;
  uint64_t step_ms = 40;
  bool keep = false;
};

class Demo {
 public:
  explicit Demo(DemoOptions options) : options_(std::move(options)) {}

  Status Run();
  const Report& report() const { return report_; }

 private:
  void Say(const std::string& line) {
    double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    std::printf("%7.2f s  %s\n", seconds, line.c_str());
    std::fflush(stdout);
  }
  local::TrainingOptions TrainingFor(const std::string& job) const {
    local::TrainingOptions training;
    training.job = job;
    training.steps = options_.steps;
    training.params = options_.params;
    return training;
  }
  Status TrainUninterrupted();
  Status RunDrills(Cluster& cluster, Training& training);
  void RunOne(const local::Drill& drill, local::Scene& scene);
  bool SameLosses(Training& training, uint64_t from) const;

  DemoOptions options_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  Report report_;
  std::string expected_;
  std::map<uint64_t, double> expected_losses_;
};

Status Demo::TrainUninterrupted() {
  Say(fmt::format("training {} steps without interruption, without checkpoints, for comparison",
                  options_.steps));
  Training plain(nullptr, TrainingFor("plain"));
  HOLDFAST_RETURN_IF_ERROR(plain.Start());
  HOLDFAST_RETURN_IF_ERROR(plain.AwaitFinish(kFinishTimeout));
  HOLDFAST_ASSIGN_OR_RETURN(expected_, plain.FinalParameters());
  expected_losses_ = plain.losses();
  report_.parameter_bytes = expected_.size();
  Say(fmt::format("done: loss {:.4f} → {:.4f}, {} of parameters", expected_losses_.begin()->second,
                  expected_losses_.rbegin()->second, FormatBytes(expected_.size())));
  return Status::Ok();
}

bool Demo::SameLosses(Training& training, uint64_t from) const {
  for (const auto& [step, loss] : training.losses()) {
    auto expected = expected_losses_.find(step);
    if (step >= from && (expected == expected_losses_.end() || expected->second != loss)) {
      return false;
    }
  }
  return true;
}

void Demo::RunOne(const local::Drill& drill, local::Scene& scene) {
  uint64_t before = scene.training.newest_step();
  const auto& losses = scene.training.losses();
  Say(fmt::format("step {}, loss {:.4f}. DRILL {}: {}", before,
                  losses.empty() ? 0.0 : losses.rbegin()->second, drill.name, drill.what));
  auto result = drill.run(scene);
  Report::Row row;
  if (result) {
    row.drill = *result;
  } else {
    row.error = result.error().ToString();
    Say("FAILED: " + row.error);
  }
  row.drill.name = drill.name;
  // A few steps more: what came back must go on as if nothing had happened.
  if (result && !row.drill.skipped) {
    scene.training.AwaitStep(scene.training.newest_step() + 2, milliseconds(30'000));
    row.bit_identical = SameLosses(scene.training, before > 10 ? before - 10 : 0);
  }
  if (row.drill.skipped) Say("skipped: " + row.drill.note);
  report_.rows.push_back(std::move(row));
}

Status Demo::RunDrills(Cluster& cluster, Training& training) {
  local::Scene scene{cluster, training, "charlm", [this](const std::string& s) { Say("  " + s); }};
  for (const local::Drill& drill : local::AllDrills()) {
    bool wanted = options_.drills.empty() ||
                  std::count(options_.drills.begin(), options_.drills.end(), drill.name) > 0;
    if (!wanted) continue;
    RunOne(drill, scene);
    if (!report_.rows.back().error.empty()) {
      return AbortedError("drill " + drill.name + " failed: " + report_.rows.back().error);
    }
  }
  return Status::Ok();
}

Status Demo::Run() {
  HOLDFAST_RETURN_IF_ERROR(TrainUninterrupted());
  local::ClusterOptions options;
  HOLDFAST_ASSIGN_OR_RETURN(options.root, local::MakeTempDir("holdfast-demo"));
  auto small_disk = local::SmallDisk::Make(options.root, 64ULL << 20);
  if (small_disk) options.data_dir_of[local::kSmallDiskNode] = small_disk->path() + "/data";
  options.arena_bytes = 64ULL << 20;
  Status status;
  {
    Cluster cluster(options);
    HOLDFAST_RETURN_IF_ERROR(cluster.Start());
    Say(fmt::format("a coordinator and {} agents are up in {}", cluster.nodes(), options.root));
    local::TrainingOptions train = TrainingFor("charlm");
    train.step_sleep_ms = options_.step_ms;
    Training training(&cluster, train);
    HOLDFAST_RETURN_IF_ERROR(training.Start());
    Say("four ranks train on the GPL-3 and checkpoint every step");
    status = RunDrills(cluster, training);
    if (status.ok()) {
      Say("no more failures; training to the end");
      status = training.AwaitFinish(kFinishTimeout);
    }
    if (status.ok()) {
      HOLDFAST_ASSIGN_OR_RETURN(std::string final, training.FinalParameters());
      report_.bit_identical = final == expected_;
      report_.steps = training.newest_step();
    }
  }
  if (options_.keep) {
    Say("kept: " + options.root);
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
      "Runs a training job that checkpoints every step, kills everything around it, and compares "
      "its final parameters with an uninterrupted run's.");
  app.add_option("--json", options.json_path, "also write the report as JSON");
  app.add_option("--drill", options.drills, "only these drills (repeatable); default: all");
  app.add_option("--steps", options.steps, "steps to train")->capture_default_str();
  app.add_option("--params", options.params, "parameters of the model")->capture_default_str();
  app.add_option("--step-ms", options.step_ms, "slows each step down")->capture_default_str();
  app.add_flag("--keep", options.keep, "keep data and logs");
  CLI11_PARSE(app, argc, argv);

  Demo demo(options);
  Status status = demo.Run();
  std::printf("\n%s\n", ToTable(demo.report()).c_str());
  if (!status.ok()) std::printf("%s\n", status.ToString().c_str());
  bool good = status.ok() && demo.report().bit_identical;
  for (const Report::Row& row : demo.report().rows) {
    good = good && row.error.empty() && (row.bit_identical || row.drill.skipped);
  }
  std::printf("VERDICT: final parameters %s to the uninterrupted run's\n",
              demo.report().bit_identical ? "bit-identical" : "NOT identical");
  if (!options.json_path.empty()) std::ofstream(options.json_path) << ToJson(demo.report());
  return good ? 0 : 1;
}

}  // namespace
}  // namespace holdfast::demo

// An exception may end this program.  NOLINTNEXTLINE(bugprone-exception-escape)
int main(int argc, char** argv) { return holdfast::demo::Main(argc, argv); }
