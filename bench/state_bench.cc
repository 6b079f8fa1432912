#include <fmt/format.h>
#include <time.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <string>

#include "bench/state_load.h"

// holdfast-state-bench [--nodes N] [--ranks R] [--parity]
//
// CPU time of the coordinator's rules for the events of a whole job, without gRPC and without a
// store. Prints one line for each kind of event.

namespace holdfast::bench {
namespace {
double CpuSeconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

void Measure(StateLoad& load) {
  double before = CpuSeconds();
  const auto report = [&](const char* what, uint32_t expected) {
    const double seconds = CpuSeconds() - before;
    const uint32_t answered = load.TakeSuccesses();
    std::printf("%-48s %9.3f s %8.2f us for each rank%s\n", what, seconds,
                1e6 * seconds / load.world(), answered < expected ? "  NOT ALL ANSWERED" : "");
    std::fflush(stdout);
    before = CpuSeconds();
  };
  const uint32_t world = load.world();
  load.Attach();
  report("agents attach", 0);
  load.Join("first");
  report("ranks join", world);
  load.Run();
  load.RequestRestore();
  report("ranks find that there is nothing to restore", 0);
  load.Save(1);
  report("first version, in memory and on disk", 0);
  for (uint64_t step = 2; step <= 4; ++step) load.Save(step);
  report("three more versions", 0);
  load.Restart();
  report("the coordinator loads its records", 0);
  load.Attach();
  report("agents attach with their replicas", 0);
  load.End();
  load.Join("second");
  report("ranks of a new start join", world);
  load.Prepare();
  report("shards are prepared", 0);
  load.RequestRestore();
  report("ranks request a restore", world);
  load.Run();
  load.Save(5);
  report("the next version", 0);
  load.End();
  load.Join("third");
  report("ranks of a third start join", world);
  load.RequestRestore();
  report("ranks request a restore before shards are ready", 0);
  load.Prepare();
  report("shards are prepared, and the restore is decided", world);
  load.Lose();
  report("all nodes are lost", 0);
}

int Main(int argc, char** argv) {
  uint32_t nodes = 2048;
  uint32_t ranks = 8;
  bool parity = false;
  CLI::App app("Measures the CPU time of the coordinator's rules.");
  app.add_option("--nodes", nodes, "nodes of the job")
      ->check(CLI::Range(2, 100'000))
      ->capture_default_str();
  app.add_option("--ranks", ranks, "ranks of each node")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_flag("--parity", parity, "the nodes are in parity groups");
  CLI11_PARSE(app, argc, argv);
  StateLoad load(nodes, ranks, parity);
  Measure(load);
  return 0;
}

}  // namespace
}  // namespace holdfast::bench

// An exception may end this program.  NOLINTNEXTLINE(bugprone-exception-escape)
int main(int argc, char** argv) { return holdfast::bench::Main(argc, argv); }
