// The time from a rank's death to the first new version, compared with a normal start of the same
// job, alternating. Both times come from the coordinator's log.

#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include "agent/workers/worker_files.h"
#include "bench/bench.h"
#include "testing/cluster/cluster.h"
#include "testing/cluster/process.h"

namespace holdfast::bench {
namespace {
using std::chrono::milliseconds;
constexpr milliseconds kTimeout(60'000);
constexpr int kNodes = 4;

int64_t WallMs() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

/// Returns the time at the beginning of a log line, in ms since 1970; nothing for other lines.
std::optional<int64_t> StampOf(const std::string& line) {
  tm time{};
  int ms = 0;
  if (std::sscanf(line.c_str(), "%d-%d-%dT%d:%d:%d.%dZ", &time.tm_year, &time.tm_mon, &time.tm_mday,
                  &time.tm_hour, &time.tm_min, &time.tm_sec, &ms) != 7) {
    return std::nullopt;
  }
  time.tm_year -= 1900;
  time.tm_mon -= 1;
  return int64_t{::timegm(&time)} * 1000 + ms;
}

/// Returns the time of the first line after `from_ms` that contains all of `texts`.
std::optional<int64_t> FirstAfter(const std::string& log, int64_t from_ms,
                                  const std::vector<std::string>& texts) {
  std::ifstream file(log);
  for (std::string line; std::getline(file, line);) {
    const bool has = std::all_of(texts.begin(), texts.end(), [&](const std::string& text) {
      return line.find(text) != std::string::npos;
    });
    const auto stamp = has ? StampOf(line) : std::nullopt;
    if (stamp && *stamp >= from_ms) return stamp;
  }
  return std::nullopt;
}

class Recovery {
 public:
  explicit Recovery(local::Cluster& cluster) : cluster_(cluster) {}

  /// Returns the milliseconds of a start, and of a restart after a rank's death.
  Result<std::pair<double, double>> Round(int round) {
    const std::string job = fmt::format("job-{}", round);
    const std::string meet = cluster_.root() + "/meet-" + job;
    std::filesystem::create_directories(meet);
    const int64_t asked = WallMs();
    HOLDFAST_ASSIGN_OR_RETURN(
        auto run, cluster_.Cli({"run", "--job", job, "--nnodes", std::to_string(kNodes), "--detach",
                                "--", local::BinaryDir() + "/holdfast-charlm", "--rendezvous", meet,
                                "--steps", "1000000", "--step-sleep-ms", "20"}));
    if (run.exit_code != 0) return Fail(InternalError(run.errors));
    // Measured from when the coordinator has accepted the run, since a restart needs no CLI process
    // either.
    HOLDFAST_ASSIGN_OR_RETURN(const int64_t accepted,
                              Await(asked, {" Run ", "job=" + job, "phase=waiting"}));
    HOLDFAST_ASSIGN_OR_RETURN(const int64_t first,
                              Await(accepted, {"VersionCommitted", "job=" + job, "version=1-"}));
    std::this_thread::sleep_for(milliseconds(1000));
    const auto pids = agent::ReadPids(cluster_.RunDir(1) + "/workers/" + job + "/rank-1");
    if (!pids) return Fail(InternalError("rank 1 does not run on node 1"));
    const int64_t killed = WallMs();
    ::kill(pids->worker.pid, SIGKILL);
    HOLDFAST_ASSIGN_OR_RETURN(const int64_t again,
                              Await(killed, {"VersionCommitted", "job=" + job, "version=2-"}));
    HOLDFAST_ASSIGN_OR_RETURN(auto stopped, cluster_.Cli({"stop", job, "--now"}));
    if (stopped.exit_code != 0) return Fail(InternalError(stopped.errors));
    return std::pair<double, double>(first - accepted, again - killed);
  }

 private:
  Result<int64_t> Await(int64_t from_ms, const std::vector<std::string>& texts) {
    std::optional<int64_t> stamp;
    local::WaitUntil(
        [&] { return (stamp = FirstAfter(cluster_.CoordinatorLog(), from_ms, texts)).has_value(); },
        kTimeout);
    if (stamp) return *stamp;
    return Fail(DeadlineExceededError("the coordinator's log has no " + texts.front()));
  }

  local::Cluster& cluster_;
};

}  // namespace

Result<std::vector<BenchResult>> RunRecovery(const BenchOptions& /*options*/) {
  local::ClusterOptions cluster_options;
  HOLDFAST_ASSIGN_OR_RETURN(cluster_options.root, local::MakeTempDir("hf-bench"));
  cluster_options.nodes = kNodes;
  cluster_options.arena_bytes = 64ULL << 20;
  cluster_options.coordinator_settings = {"log_level=debug"};
  std::vector<double> starts;
  std::vector<double> recoveries;
  std::vector<double> ratios;
  {
    local::Cluster cluster(cluster_options);
    HOLDFAST_RETURN_IF_ERROR(cluster.Start());
    Recovery recovery(cluster);
    for (int round = 0; round < 3; ++round) {
      HOLDFAST_ASSIGN_OR_RETURN(const auto times, recovery.Round(round));
      starts.push_back(times.first);
      recoveries.push_back(times.second);
      ratios.push_back(times.second / times.first);
    }
  }
  std::filesystem::remove_all(cluster_options.root);
  return std::vector<BenchResult>{
      {.name = "recovery",
       .ratio = Median(ratios),
       .ours = Median(recoveries),
       .reference = Median(starts),
       .unit = "ms",
       .goal = "<=1.5",
       .note = "SIGKILL of a rank → first new version ÷ the job's normal start → its first "
               "version"}};
}

}  // namespace holdfast::bench
