// Training with parity of every step on other nodes, compared with the same training that is saved
// only to its own nodes' memory: with and without pacing by the trainers' phase hints.

#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>

#include "bench/bench.h"
#include "testing/cluster/cluster.h"
#include "testing/cluster/training.h"

namespace holdfast::bench {
namespace {

constexpr int kNodes = 4;
constexpr size_t kWarmSteps = 3;

/// One configuration with its own cluster. The destructor removes the cluster's files.
struct Configuration {
  ~Configuration() {
    cluster.reset();
    std::error_code ignored;
    if (!root.empty()) std::filesystem::remove_all(root, ignored);
  }
  std::string name;
  std::vector<std::string> settings;
  std::string root;
  std::unique_ptr<local::Cluster> cluster;
  std::vector<double> step_ms;
};

local::TrainingOptions TrainingFor(const BenchOptions& options, const std::string& job) {
  local::TrainingOptions training;
  training.job = job;
  training.world = kNodes;
  training.params = options.quick ? 1'000'000 : 4'000'000;
  training.steps = options.quick ? 10 : 20;
  return training;
}

Status StartCluster(Configuration& way, uint64_t state_bytes, int rounds) {
  local::ClusterOptions options;
  HOLDFAST_ASSIGN_OR_RETURN(way.root, local::MakeTempDir("hf-bench"));
  options.root = way.root;
  options.nodes = kNodes;
  options.disk_every = 1'000'000'000;
  // Each round is a separate job. Without a version on disk its memory is never released.
  options.arena_bytes = (state_bytes / kNodes * 5 + (32ULL << 20)) * static_cast<uint64_t>(rounds);
  options.agent_settings = way.settings;
  options.agent_settings.push_back("peers.listen=127.0.0.1:0");
  options.agent_settings.push_back("insecure_loopback=true");
  way.cluster = std::make_unique<local::Cluster>(options);
  return way.cluster->Start();
}

/// Returns the bytes that the agents have sent to each other.
Result<uint64_t> SentBytes(local::Cluster& cluster) {
  uint64_t all = 0;
  for (int node = 0; node < kNodes; ++node) {
    HOLDFAST_ASSIGN_OR_RETURN(auto answer, cluster.Cli({"dump", fmt::format("n{}", node)}));
    const auto dump = nlohmann::json::parse(answer.out, nullptr, false);
    if (!dump.is_object()) return Fail(InternalError("no dump: " + answer.errors));
    const auto& peers = dump["dump"]["peers"];
    if (peers.is_object()) all += peers["data_bytes"].get<uint64_t>();
  }
  return all;
}

Status Train(Configuration& way, const local::TrainingOptions& options) {
  local::Training training(way.cluster.get(), options);
  HOLDFAST_RETURN_IF_ERROR(training.Start());
  HOLDFAST_RETURN_IF_ERROR(training.AwaitFinish(std::chrono::minutes(8)));
  std::vector<double> steps = training.step_ms();
  if (steps.size() < kWarmSteps + 2) return InternalError("too few steps were reported");
  steps.erase(steps.begin(), steps.begin() + kWarmSteps);
  way.step_ms.push_back(std::accumulate(steps.begin(), steps.end(), 0.0) /
                        static_cast<double>(steps.size()));
  return Status::Ok();
}

double RatioOf(const Configuration& way, const Configuration& without) {
  std::vector<double> ratios;  // of adjacent runs: the machine's load changes over minutes
  for (size_t i = 0; i < way.step_ms.size(); ++i) {
    ratios.push_back(way.step_ms[i] / without.step_ms[i]);
  }
  return Median(ratios);
}

}  // namespace

Result<std::vector<BenchResult>> RunSlowdown(const BenchOptions& options) {
  const uint64_t state_bytes = TrainingFor(options, "").params * 12;
  std::array<Configuration, 3> ways;
  ways[0].settings = {"peers.enabled=false"};
  ways[1].name = "paced";
  ways[1].settings = {"peers.every=1"};
  ways[2].name = "unpaced";
  ways[2].settings = {"peers.every=1", "peers.yield_max_ms=0"};
  const int rounds = 1;
  for (Configuration& way : ways) {
    HOLDFAST_RETURN_IF_ERROR(StartCluster(way, state_bytes, rounds));
  }
  for (int round = 0; round < rounds; ++round) {
    for (Configuration& way : ways) {
      HOLDFAST_RETURN_IF_ERROR(Train(way, TrainingFor(options, fmt::format("job-{}", round))));
    }
  }
  std::vector<BenchResult> results;
  for (const Configuration& way : {std::cref(ways[1]), std::cref(ways[2])}) {
    HOLDFAST_ASSIGN_OR_RETURN(const uint64_t sent, SentBytes(*way.cluster));
    const double steps =
        static_cast<double>(rounds) * static_cast<double>(TrainingFor(options, "").steps);
    results.push_back({.name = "slowdown_" + way.name,
                       .ratio = RatioOf(way, ways[0]),
                       .ours = Median(way.step_ms),
                       .reference = Median(ways[0].step_ms),
                       .unit = "ms/step",
                       .goal = "",
                       .note = fmt::format(
                           "4 ranks on 4 nodes, {} MB of state, parity of every step ÷ memory "
                           "only; parity sent for {:.2f} of the steps",
                           state_bytes / 1'000'000,
                           static_cast<double>(sent) / static_cast<double>(state_bytes) / steps)});
  }
  return results;
}

}  // namespace holdfast::bench
