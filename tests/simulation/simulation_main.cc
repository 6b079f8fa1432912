#include <fmt/format.h>
#include <stdlib.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/log.h"
#include "tests/simulation/scenario.h"

// Simulates whole systems, each from one seed. A failure prints its seed; `--seed N` replays it
// with a trace.

namespace holdfast::simulation {
namespace {

constexpr char kHelp[] =
    "usage: holdfast-simulation [--seed N | --seeds N [--start N]] [--long] [--twice]\n"
    "\n"
    "  --seed N     replay one seed and print what happens\n"
    "  --seeds N    the number of seeds\n"
    "  --start N    the first of them (1)\n"
    "  --long       ten times as much virtual time with faults\n"
    "  --twice      simulate each seed twice and compare the traces\n"
    "  --log        with --seed: print the log lines of the product, too\n";

struct Arguments {
  uint64_t seed = 0;
  uint64_t seeds = 100;
  uint64_t start = 1;
  bool is_long = false;
  bool twice = false;
  bool log = false;
};

bool Parse(int argc, char** argv, Arguments* arguments) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    const auto number = [&](uint64_t* value) {
      if (++i >= argc) return false;
      *value = ::strtoull(argv[i], nullptr, 10);
      return *value != 0;
    };
    bool ok = true;
    if (name == "--seed") {
      ok = number(&arguments->seed);
    } else if (name == "--seeds") {
      ok = number(&arguments->seeds);
    } else if (name == "--start") {
      ok = number(&arguments->start);
    } else if (name == "--long") {
      arguments->is_long = true;
    } else if (name == "--twice") {
      arguments->twice = true;
    } else if (name == "--log") {
      arguments->log = true;
    } else {
      ok = false;
    }
    if (!ok) return false;
  }
  return true;
}

void Add(Checker::Counts* total, const Checker::Counts& one) {
  total->commits += one.commits;
  total->peer_commits += one.peer_commits;
  total->disk_commits += one.disk_commits;
  total->restores += one.restores;
  total->fresh += one.fresh;
  total->demanded += one.demanded;
  total->removed += one.removed;
}

int Main(const Arguments& arguments) {
  const bool one = arguments.seed != 0;
  const bool logs = one && arguments.log;
  ConfigureLog("simulation", logs ? LogLevel::kDebug : LogLevel::kError);
  // The faults cause many log lines of errors.
  if (!logs && ::freopen("/dev/null", "w", stderr) == nullptr) return 2;
  std::string dir = std::filesystem::temp_directory_path().string() + "/holdfast-sim-XXXXXX";
  if (::mkdtemp(dir.data()) == nullptr) return 2;
  const uint64_t first = one ? arguments.seed : arguments.start;
  const uint64_t last = one ? first : first + arguments.seeds - 1;
  const auto began = std::chrono::steady_clock::now();
  Checker::Counts total;
  uint64_t faults = 0;
  uint64_t runs = 0;
  double simulated = 0;
  int failed = 0;
  for (uint64_t seed = first; seed <= last; ++seed) {
    ScenarioOptions options{seed, dir, one, arguments.is_long ? 100.0 : 0};
    Outcome outcome = RunScenario(options);
    if (arguments.twice) {
      options.verbose = false;
      const Outcome again = RunScenario(options);
      if (again.trace != outcome.trace) outcome.problems.push_back("the second trace differs");
    }
    Add(&total, outcome.counts);
    faults += outcome.faults;
    runs += outcome.runs;
    simulated += outcome.virtual_seconds;
    if (one) {
      std::printf("trace %016lx, %lu steps\n", outcome.trace, outcome.steps);
    }
    if (outcome.problems.empty()) continue;
    ++failed;
    for (const std::string& problem : outcome.problems) {
      std::printf("seed %lu: %s\n", seed, problem.c_str());
    }
    std::printf("replay: holdfast-simulation --seed %lu%s\n", seed,
                arguments.is_long ? " --long" : "");
    std::fflush(stdout);
  }
  std::error_code error;
  std::filesystem::remove_all(dir, error);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  std::printf(
      "seeds %lu to %lu: %d failed; %.0f s of virtual time in %.1f s; %lu faults, %lu runs; "
      "%lu commits (%lu at peer, %lu on disk), %lu versions removed; %lu ranks restored, %lu began "
      "fresh, %lu decisions had to take a version\n",
      first, last, failed, simulated, took.count(), faults, runs, total.commits, total.peer_commits,
      total.disk_commits, total.removed, total.restores, total.fresh, total.demanded);
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace holdfast::simulation

int main(int argc, char** argv) {
  holdfast::simulation::Arguments arguments;
  if (!holdfast::simulation::Parse(argc, argv, &arguments)) {
    std::fputs(holdfast::simulation::kHelp, stderr);
    return 64;
  }
  return holdfast::simulation::Main(arguments);
}
