// Compares training that reports every step and collective to the agent with the same training
// without reports. Runs of the two alternate.

#include <fmt/format.h>

#include <filesystem>

#include "bench/bench.h"
#include "testing/cluster/cluster.h"
#include "testing/cluster/training.h"

namespace holdfast::bench {
namespace {

constexpr int kWorld = 2;
constexpr size_t kWarmSteps = 5;

local::TrainingOptions TrainingFor(const BenchOptions& options, const std::string& job,
                                   bool records) {
  local::TrainingOptions training;
  training.job = job;
  training.world = kWorld;
  training.params = 200'000;
  training.steps = options.quick ? 60 : 300;
  training.flags = {"--save-every", "0"};  // measure records without saves
  if (!records) training.flags.emplace_back("--no-records");
  return training;
}

/// Returns the median duration of a step in one run, in milliseconds.
Result<double> StepMs(local::Cluster& cluster, const local::TrainingOptions& options) {
  local::Training training(&cluster, options);
  HOLDFAST_RETURN_IF_ERROR(training.Start());
  HOLDFAST_RETURN_IF_ERROR(training.AwaitFinish(std::chrono::minutes(8)));
  std::vector<double> steps = training.step_ms();
  if (steps.size() < kWarmSteps + 5) return Fail(InternalError("too few steps were reported"));
  steps.erase(steps.begin(), steps.begin() + kWarmSteps);
  return Median(steps);
}

}  // namespace

Result<std::vector<BenchResult>> RunTelemetry(const BenchOptions& options) {
  const int rounds = 3;
  local::ClusterOptions cluster_options;
  HOLDFAST_ASSIGN_OR_RETURN(cluster_options.root, local::MakeTempDir("hf-bench"));
  cluster_options.data_dir_of[0] = options.dir + "/data";
  cluster_options.nodes = 1;
  // Each run is a separate job.
  cluster_options.arena_bytes = (32ULL << 20) * kWorld * static_cast<uint64_t>(2 * rounds + 1);
  local::Cluster cluster(cluster_options);
  HOLDFAST_RETURN_IF_ERROR(cluster.Start());
  std::vector<double> ratios;  // of consecutive runs, since the machine's speed varies over minutes
  std::vector<double> with;
  std::vector<double> without;
  for (int round = 0; round < rounds; ++round) {
    for (int half = 0; half < 2; ++half) {
      const bool records = half == round % 2;  // the order within a pair alternates too
      const std::string job = fmt::format("job-{}-{}", round, half);
      HOLDFAST_ASSIGN_OR_RETURN(double ms, StepMs(cluster, TrainingFor(options, job, records)));
      (records ? with : without).push_back(ms);
    }
    ratios.push_back(with.back() / without.back());
  }
  std::filesystem::remove_all(cluster_options.root);
  return std::vector<BenchResult>{
      {.name = "telemetry",
       .ratio = Median(ratios),
       .ours = Median(with),
       .reference = Median(without),
       .unit = "ms/step",
       .goal = "<=1.005",
       .note = fmt::format("{} ranks, steps with 11 collectives each, no saves; {} pairs of runs",
                           kWorld, rounds)}};
}

}  // namespace holdfast::bench
