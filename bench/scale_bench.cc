#include <fmt/format.h>
#include <sched.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <thread>
#include <vector>

#include "base/log.h"
#include "bench/load_coordinator.h"
#include "bench/process_usage.h"
#include "bench/simulated_nodes.h"

// holdfast-scale-bench --name ROW [--nodes N] [--ranks R] [--relays R] [--versions V]
//                      [--interval S] [--lease MS] [--attach] [--own-core] [--dir DIR]
//
// Simulated agents with real gRPC streams against a real coordinator process. Without --own-core
// the agents share the machine's cores with the coordinator, so the figures are upper bounds. The
// reference of each figure is its goal. Prints one JSON object per line.

namespace holdfast::bench {
namespace {
using SteadyClock = std::chrono::steady_clock;
constexpr double kKib = 1024;
// The goals for a coordinator on one core.
constexpr double kCommitMs = 1000;
constexpr double kDecidedMs = 50;
constexpr double kCores = 0.15;
constexpr double kRankKib = 16;
constexpr double kAttachSeconds = 5;
constexpr double kHeartbeatCores = 0.3;
constexpr uint64_t kWarmUp = 4;  // after these, disk has three versions

struct Options {
  std::string name = "commit";
  LoadOptions load;
  uint32_t relays = 0;
  uint64_t versions = 60;
  double interval = 1;  // seconds from one version to the next
  double seconds = 10;  // of the measurements of heartbeats and telemetry
  double telemetry_per_second = 10;
  uint32_t lease_ms = 3000;
  bool attach = false;
  bool own_core = false;
  std::string dir;
};

double SecondsSince(SteadyClock::time_point start) {
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

double Quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  const auto at = static_cast<size_t>(q * static_cast<double>(values.size()));
  return values[std::min(values.size() - 1, at)];
}

void Print(const std::string& name, double ours, double goal, const char* unit,
           const std::string& note) {
  std::printf(
      "{\"name\": \"%s\", \"ratio\": %.4f, \"ours\": %.4f, \"reference\": %.4f, \"unit\": \"%s\", "
      "\"goal\": \"<=1\", \"note\": \"%s\"}\n",
      name.c_str(), ours / goal, ours, goal, unit, note.c_str());
  std::fflush(stdout);
}

/// Returns the coordinator's cores while `work` runs.
template <typename Work>
Result<double> CoresOf(pid_t pid, const Work& work) {
  HOLDFAST_ASSIGN_OR_RETURN(const ProcessUsage before, UsageOf(pid));
  const auto start = SteadyClock::now();
  HOLDFAST_RETURN_IF_ERROR(work());
  const double seconds = SecondsSince(start);
  HOLDFAST_ASSIGN_OR_RETURN(const ProcessUsage after, UsageOf(pid));
  return (after.cpu_seconds - before.cpu_seconds) / seconds;
}

/// Each simulated agent has a connection.
void RaiseDescriptorLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

Status WarmUp(SimulatedNodes& nodes) {
  for (uint64_t step = 1; step <= kWarmUp; ++step) {
    nodes.Save(step);
    HOLDFAST_RETURN_IF_ERROR(nodes.AwaitCommit(step));
  }
  return Status::Ok();
}

Status MeasureCommits(const Options& options, SimulatedNodes& nodes, pid_t pid,
                      const ProcessUsage& empty) {
  std::vector<double> whole;
  std::vector<double> decided;
  std::vector<double> announced;
  HOLDFAST_RETURN_IF_ERROR(WarmUp(nodes));
  const auto start = SteadyClock::now();
  HOLDFAST_ASSIGN_OR_RETURN(
      const double cores, CoresOf(pid, [&]() -> Status {
        auto due = SteadyClock::now();
        for (uint64_t step = kWarmUp + 1; step <= kWarmUp + options.versions; ++step) {
          HOLDFAST_ASSIGN_OR_RETURN(const CommitTimes times, nodes.Commit(step));
          whole.push_back(times.whole);
          decided.push_back(std::max(0.0, times.decided));
          announced.push_back(times.announced);
          due += std::chrono::milliseconds(static_cast<int64_t>(1000 * options.interval));
          std::this_thread::sleep_until(due);
        }
        return Status::Ok();
      }));
  const double seconds = SecondsSince(start) / static_cast<double>(options.versions);
  HOLDFAST_ASSIGN_OR_RETURN(const ProcessUsage full, UsageOf(pid));
  const double kib_per_rank =
      static_cast<double>(full.resident_bytes -
                          std::min(full.resident_bytes, empty.resident_bytes)) /
      kKib / nodes.world();
  Print(options.name, Quantile(whole, 0.99), kCommitMs, "ms",
        fmt::format("p99, the first report sent until the last agent has the commit; p50 {:.0f} ms",
                    Quantile(whole, 0.5)));
  Print(
      options.name + "_p50", Quantile(decided, 0.5), kDecidedMs, "ms",
      fmt::format("the last report sent until an agent has the commit; all have it after {:.0f} ms",
                  Quantile(announced, 0.5)));
  Print(options.name + "_cores", cores, kCores, "cores",
        fmt::format("of the coordinator at one version in {:g} s, with heartbeats",
                    std::max(options.interval, seconds)));
  Print(options.name + "_memory", kib_per_rank, kRankKib, "KiB",
        fmt::format("per rank with three versions on disk; {:.0f} MiB in all, {} threads",
                    static_cast<double>(full.resident_bytes) / kKib / kKib, full.threads));
  return Status::Ok();
}

Status MeasureIdle(const Options& options, SimulatedNodes& nodes, pid_t pid) {
  const auto time = std::chrono::milliseconds(static_cast<int64_t>(1000 * options.seconds));
  HOLDFAST_ASSIGN_OR_RETURN(const double heartbeats, CoresOf(pid, [&] {
                              std::this_thread::sleep_for(time);
                              return Status::Ok();
                            }));
  Print(options.name + "_heartbeat", heartbeats, kHeartbeatCores, "cores",
        fmt::format("{} agents, heartbeats as rare as it asks for, no telemetry",
                    options.load.nodes));
  TelemetryLoad load;
  const auto start = SteadyClock::now();
  HOLDFAST_ASSIGN_OR_RETURN(const double telemetry, CoresOf(pid, [&] {
                              load = nodes.Observe(options.telemetry_per_second, time);
                              return Status::Ok();
                            }));
  const double seconds = SecondsSince(start);
  Print(options.name + "_telemetry", telemetry, kHeartbeatCores, "cores",
        fmt::format("with {:.0f} telemetry digests in {:.0f} messages a second of all agents",
                    static_cast<double>(load.digests) / seconds,
                    static_cast<double>(load.messages) / seconds));
  return Status::Ok();
}

/// Lets this process, and all that it starts from now on, use the processors from `first` to before
/// `end`.
Status UseProcessors(int first, int end) {
  cpu_set_t processors;
  CPU_ZERO(&processors);
  for (int cpu = first; cpu < end; ++cpu) CPU_SET(cpu, &processors);
  if (::sched_setaffinity(0, sizeof processors, &processors) == 0) return Status::Ok();
  return ErrnoStatus(errno, fmt::format("using the processors from {}", first));
}

/// Runs `start`. With --own-core the processes that it starts get only the first `processors`, and
/// this process gets all but the first one.
template <typename Starter>
Status StartOn(int processors, const Options& options, const Starter& start) {
  if (!options.own_core) return start();
  HOLDFAST_RETURN_IF_ERROR(UseProcessors(0, processors));
  const Status started = start();
  HOLDFAST_RETURN_IF_ERROR(UseProcessors(1, CPU_SETSIZE));
  return started;
}

Status MeasureAttach(const Options& options, SimulatedNodes& nodes, LoadCoordinator& coordinator) {
  coordinator.Kill();
  HOLDFAST_RETURN_IF_ERROR(nodes.AwaitDetached());
  const auto start = SteadyClock::now();
  HOLDFAST_RETURN_IF_ERROR(StartOn(1, options, [&] { return coordinator.Start(); }));
  const double listening = SecondsSince(start);
  HOLDFAST_RETURN_IF_ERROR(nodes.AwaitAttached());
  Print(options.name, SecondsSince(start), kAttachSeconds, "s",
        fmt::format("start of the coordinator until {} agents with {} ranks are attached again; "
                    "the coordinator listens after {:.2f} s",
                    options.load.nodes, nodes.world(), listening));
  return Status::Ok();
}

Status Measure(const Options& options) {
  const auto start = SteadyClock::now();
  const auto report = [&](const char* what) {
    std::fprintf(stderr, "%s: %s after %.1f s\n", options.name.c_str(), what, SecondsSince(start));
  };
  LoadCoordinator coordinator(options.dir, 3, options.lease_ms);
  HOLDFAST_RETURN_IF_ERROR(StartOn(1, options, [&] { return coordinator.Start(); }));
  HOLDFAST_RETURN_IF_ERROR(
      StartOn(CPU_SETSIZE, options, [&] { return coordinator.StartRelays(options.relays); }));
  HOLDFAST_ASSIGN_OR_RETURN(const ProcessUsage empty, UsageOf(coordinator.pid()));
  SimulatedNodes nodes(coordinator.agent_endpoints(), options.load);
  HOLDFAST_RETURN_IF_ERROR(nodes.AwaitAttached());
  report("all agents are attached");
  HOLDFAST_RETURN_IF_ERROR(nodes.Join());
  report("all ranks have joined");
  if (options.attach) {
    HOLDFAST_RETURN_IF_ERROR(WarmUp(nodes));
    return MeasureAttach(options, nodes, coordinator);
  }
  HOLDFAST_RETURN_IF_ERROR(MeasureCommits(options, nodes, coordinator.pid(), empty));
  return MeasureIdle(options, nodes, coordinator.pid());
}

int Main(int argc, char** argv) {
  Options options;
  int64_t patience = options.load.patience.count();
  CLI::App app("Loads a real coordinator with simulated agents.");
  app.add_option("--name", options.name, "name of the rows")->capture_default_str();
  app.add_option("--nodes", options.load.nodes, "simulated agents")
      ->check(CLI::Range(1, 100'000))
      ->capture_default_str();
  app.add_option("--ranks", options.load.ranks_per_node, "ranks of each agent")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--relays", options.relays, "relays that the agents are distributed over")
      ->check(CLI::Range(0, 64))
      ->capture_default_str();
  app.add_option("--interval", options.interval, "seconds from one version to the next")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  app.add_option("--patience", patience, "seconds that each step may take")
      ->check(CLI::Range(1, 3600))
      ->capture_default_str();
  app.add_option("--versions", options.versions, "measured versions, one in each interval")
      ->check(CLI::Range(1, 100'000))
      ->capture_default_str();
  app.add_option("--seconds", options.seconds, "time of each measurement without commits")
      ->capture_default_str();
  app.add_option("--telemetry", options.telemetry_per_second,
                 "telemetry messages per second and agent")
      ->check(CLI::Range(0.1, 1000.0))
      ->capture_default_str();
  app.add_option(
         "--lease", options.lease_ms,
         "milliseconds until a silent node is lost; more where the agents share few processors")
      ->check(CLI::Range(1000, 600'000))
      ->capture_default_str();
  app.add_flag("--attach", options.attach,
               "restart the coordinator and measure only until all agents are attached again");
  app.add_flag("--own-core", options.own_core,
               "the coordinator runs on processor 0, its relays on any, the agents on the others");
  app.add_option("--dir", options.dir, "empty folder for the coordinator, with a short path")
      ->required();
  CLI11_PARSE(app, argc, argv);
  options.load.patience = std::chrono::seconds(patience);
  RaiseDescriptorLimit();
  ConfigureLog("scale", LogLevel::kWarn);
  std::filesystem::create_directories(options.dir);
  const Status status = Measure(options);
  if (status.ok()) return 0;
  std::fprintf(stderr, "holdfast-scale-bench: %s\n", status.ToString().c_str());
  return 1;
}

}  // namespace
}  // namespace holdfast::bench

// An exception may end this program.  NOLINTNEXTLINE(bugprone-exception-escape)
int main(int argc, char** argv) { return holdfast::bench::Main(argc, argv); }
