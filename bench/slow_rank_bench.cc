// Measures how many iterations pass until a straggler of the example trainer, whose steps take a
// fifth longer, is reported as an incident.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "bench/bench.h"
#include "testing/cluster/cluster.h"
#include "testing/cluster/process.h"

namespace holdfast::bench {
namespace {
using nlohmann::json;
using std::chrono::milliseconds;
constexpr milliseconds kNamedWithin(120'000);
constexpr int kNodes = 4;
constexpr int kLate = 2;
constexpr uint64_t kFromStep = 30;
constexpr int kStepMs = 400;
constexpr int kLateMs = kStepMs / 5;

class LateRank {
 public:
  explicit LateRank(local::Cluster& cluster) : cluster_(cluster) {}

  /// Returns the number of iterations from the first late one to the newest one at the time when
  /// the incident becomes visible.
  Result<double> Round(int round) {
    job_ = fmt::format("job-{}", round);
    HOLDFAST_RETURN_IF_ERROR(Launch());
    uint64_t named_at = 0;
    local::WaitUntil(
        [&] {
          if (!IsNamed()) return false;
          named_at = NewestStep();
          return true;
        },
        kNamedWithin);
    HOLDFAST_ASSIGN_OR_RETURN(auto stopped, cluster_.Cli({"stop", job_, "--now"}));
    if (stopped.exit_code != 0) return Fail(InternalError(stopped.errors));
    if (named_at < kFromStep) {
      return Fail(InternalError("the late rank was not reported within 120 s"));
    }
    return static_cast<double>(named_at - kFromStep + 1);
  }

 private:
  Status Launch() {
    const std::string meet = cluster_.root() + "/meet-" + job_;
    std::filesystem::create_directories(meet);
    const std::string script = fmt::format(
        "[ $RANK = {} ] && late='--slow-ms {} --slow-from-step {}'; "
        "exec {}/holdfast-charlm --rendezvous {} --steps 1000000 --step-sleep-ms {} $late",
        kLate, kLateMs, kFromStep, local::BinaryDir(), meet, kStepMs);
    HOLDFAST_ASSIGN_OR_RETURN(
        auto run, cluster_.Cli({"run", "--job", job_, "--nnodes", std::to_string(kNodes),
                                "--detach", "--", "sh", "-c", script}));
    return run.exit_code == 0 ? Status::Ok() : InternalError(run.errors);
  }
  json Query(std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"-o", "json"});
    auto answer = cluster_.Cli(arguments);
    return answer ? json::parse(answer->out, nullptr, false) : json();
  }
  bool IsNamed() {
    const json answer = Query({"incidents", "--job", job_});
    if (!answer.is_object()) return false;
    for (const json& incident : answer["incidents"]) {
      if (incident["kind"] == "non-communication slow" && incident["ranks"] == json({kLate})) {
        return true;
      }
    }
    return false;
  }
  uint64_t NewestStep() {
    const json status = Query({"status", job_});
    if (!status.is_object() || status["jobs"].empty()) return 0;
    return status["jobs"][0]["newest_seen_step"].get<uint64_t>();
  }

  local::Cluster& cluster_;
  std::string job_;
};

}  // namespace

Result<std::vector<BenchResult>> RunSlowRank(const BenchOptions& /*options*/) {
  local::ClusterOptions cluster_options;
  HOLDFAST_ASSIGN_OR_RETURN(cluster_options.root, local::MakeTempDir("hf-bench"));
  cluster_options.nodes = kNodes;
  cluster_options.arena_bytes = 64ULL << 20;
  std::vector<double> iterations;
  {
    local::Cluster cluster(cluster_options);
    HOLDFAST_RETURN_IF_ERROR(cluster.Start());
    LateRank late(cluster);
    for (int round = 0; round < 1; ++round) {
      HOLDFAST_ASSIGN_OR_RETURN(const double passed, late.Round(round));
      iterations.push_back(passed);
    }
  }
  std::filesystem::remove_all(cluster_options.root);
  return std::vector<BenchResult>{
      {.name = "slow_rank",
       .ratio = Median(iterations),
       .ours = Median(iterations),
       .reference = 1,
       .unit = "iterations",
       .goal = "<=20",
       .note =
           fmt::format("from a rank {} ms late in steps of {} ms to its incident; at most {}",
                       kLateMs, kStepMs, *std::max_element(iterations.begin(), iterations.end()))}};
}

}  // namespace holdfast::bench
