// Training with a checkpoint every step, compared with the same training without, alternating.

#include <fmt/format.h>

#include <filesystem>
#include <numeric>

#include "bench/bench.h"
#include "testing/cluster/cluster.h"
#include "testing/cluster/training.h"

namespace holdfast::bench {
namespace {

local::TrainingOptions TrainingFor(const BenchOptions& options, const std::string& job) {
  local::TrainingOptions training;
  training.job = job;
  // Parameters and two moments of 4 bytes each: over 500 MB in all.
  training.params = options.quick ? 4'000'000 : 44'000'000;
  training.steps = options.quick ? 8 : 12;
  return training;
}

/// Returns the mean milliseconds per step after three steps of warm-up.
Result<double> MeanStepMs(local::Training& training) {
  HOLDFAST_RETURN_IF_ERROR(training.Start());
  HOLDFAST_RETURN_IF_ERROR(training.AwaitFinish(std::chrono::minutes(8)));
  std::vector<double> steps = training.step_ms();
  if (steps.size() < 5) return Fail(InternalError("too few steps were reported"));
  steps.erase(steps.begin(), steps.begin() + 3);
  return std::accumulate(steps.begin(), steps.end(), 0.0) / static_cast<double>(steps.size());
}

}  // namespace

Result<std::vector<BenchResult>> RunStall(const BenchOptions& options) {
  local::ClusterOptions cluster_options;
  HOLDFAST_ASSIGN_OR_RETURN(cluster_options.root, local::MakeTempDir("hf-bench"));
  cluster_options.data_dir_of[0] = options.dir + "/data";
  cluster_options.nodes = 1;
  cluster_options.disk_every = 0;
  uint64_t params = TrainingFor(options, "").params;
  cluster_options.arena_bytes = params * 12 * 4 + (512ULL << 20);
  local::Cluster cluster(cluster_options);
  HOLDFAST_RETURN_IF_ERROR(cluster.Start());

  std::vector<double> ratios;  // of adjacent runs: the machine's load changes over minutes
  std::vector<double> with;
  std::vector<double> without;
  for (int round = 0; round < 1; ++round) {
    local::Training plain(nullptr, TrainingFor(options, fmt::format("plain-{}", round)));
    HOLDFAST_ASSIGN_OR_RETURN(double plain_ms, MeanStepMs(plain));
    without.push_back(plain_ms);
    local::Training saving(&cluster, TrainingFor(options, fmt::format("saving-{}", round)));
    HOLDFAST_ASSIGN_OR_RETURN(double saving_ms, MeanStepMs(saving));
    with.push_back(saving_ms);
    ratios.push_back(saving_ms / plain_ms);
  }
  std::filesystem::remove_all(cluster_options.root);
  return std::vector<BenchResult>{
      {.name = "stall",
       .ratio = Median(ratios),
       .ours = Median(with),
       .reference = Median(without),
       .unit = "ms/step",
       .goal = "<=1.05",
       .note = fmt::format("4 ranks and the agent on this machine's cores, {} MB of state, every "
                           "step in memory, to disk as often as possible",
                           params * 12 / 1'000'000)}};
}

}  // namespace holdfast::bench
