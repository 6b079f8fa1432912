// The front end of all benchmarks: runs the named ones, several times each, prints a table and,
// with --json, writes the results. The ratios do not change the exit code: 1 means that a benchmark
// could not run or that a name is unknown.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "base/config.h"
#include "bench/bench.h"
#include "bench/programs.h"
#include "bench/report.h"
#include "testing/cluster/cluster.h"

namespace holdfast::bench {
namespace {

// Each of the 10,000 tensors has some bytes.
constexpr uint64_t kGpuBytesMin = 1 << 20;

const std::vector<Bench>& All() {
  static const std::vector<Bench> all = {
      {"checksum", "CRC-32C ÷ plain ISA-L", RunChecksum},
      {"allocation", "reserving slots ÷ with one thread", RunAllocation},
      {"first_save", "start of a job → first save ÷ fallocate of its slots", RunFirstSave, false,
       true},
      {"erasure", "encode and decode ÷ plain ISA-L", RunErasure},
      {"transport", "peer transport over loopback ÷ iperf3", RunTransport},
      {"parity", "sealed → committed at peer ÷ the slower of transport and encode; bytes sent",
       RunParity},
      {"rebuild", "a lost node's shard decoded ÷ the same bytes from one node", RunRebuild},
      {"slowdown", "training with parity of every step ÷ without peers", RunSlowdown},
      {"growth", "time and bytes of parity for groups of 2 to 16 nodes", RunGrowth, true},
      {"disk", "slot → durable and back ÷ fio", RunDisk},
      {"disk_stages", "the stages of a read into a slot ÷ fio", RunDiskStages, true, true},
      {"streaming", "Save → durable ÷ the slowest stage on its own", RunStreaming},
      {"stall", "training with a checkpoint every step ÷ without", RunStall},
      {"restore", "restore ÷ memcpy", RunRestore},
      {"reshard", "a version read by another number of ranks ÷ memcpy", RunReshard},
      {"plan", "planning a restore for 8 to 8,192 ranks", RunPlan, false, true},
      {"memory", "the agent's memory without its arena", RunMemory},
      {"record", "the cost of recording one event of a collective, nanoseconds", RunRecord},
      {"telemetry", "training that records its collectives ÷ training that does not", RunTelemetry},
      {"recovery", "a killed rank → first new version ÷ normal start of the job", RunRecovery},
      {"slow_rank", "iterations until a rank that is 20 % slower is reported", RunSlowRank},
      {"coordinator", "commit rate and latency with 4 and 1,024 ranks", RunCoordinator},
      {"commit_1024", "128 simulated agents with 8 ranks each ÷ the goals", RunCommit1024, false,
       true},
      {"commit_16384", "2,048 simulated agents with 8 ranks each, behind two relays ÷ the goals",
       RunCommit16384, false, true},
      {"commit_98352", "12,294 simulated agents behind 9 relays ÷ the goals at 2,048 agents",
       RunCommit98352, false, true},
      {"attach_2048", "2,048 agents attach again to a restarted coordinator ÷ the goal",
       RunAttach2048, false, true},
      {"absent_coordinator", "training without coordinators and etcd for ten minutes ÷ with them",
       RunAbsentCoordinator, false, true},
#ifdef HOLDFAST_BENCH_GPU
      {"gpu", "device → sealed slot, restore, stall ÷ one pinned copy", RunGpu},
#endif
      {"torch", "compared with torch.save, safetensors and torch.distributed.checkpoint", RunTorch,
       true, true},
      {"fault-matrix", "the detector on simulated faults", RunFaultMatrix, true, true},
  };
  return all;
}

/// Runs all repetitions of one benchmark and combines them.
Result<std::vector<BenchResult>> RunRepeated(const Bench& bench, const BenchOptions& options) {
  std::vector<std::vector<BenchResult>> repetitions;
  const uint32_t count = bench.repeats_itself ? 1 : options.repeat;
  for (uint32_t i = 0; i < count; ++i) {
    std::fprintf(stderr, "%s: %u of %u\n", bench.name.c_str(), i + 1, count);
    std::filesystem::remove_all(options.dir);
    std::filesystem::create_directories(options.dir);
    auto outcome = bench.run(options);
    std::filesystem::remove_all(options.dir);
    if (!outcome) return Fail(outcome.error());
    repetitions.push_back(std::move(*outcome));
  }
  return Combine(repetitions);
}

/// Returns false and prints the reason to standard error when a name is unknown.
bool AreKnown(const std::vector<std::string>& names) {
  std::vector<std::string> known;
  for (const Bench& bench : All()) known.push_back(bench.name);
  for (const std::string& name : names) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    std::fprintf(stderr, "unknown benchmark '%s'; known: %s\n", name.c_str(),
                 fmt::format("{}", fmt::join(known, ", ")).c_str());
    return false;
  }
  return true;
}

std::string Names() {
  std::string text = "Benchmarks (without NAME all except those marked *):\n";
  for (const Bench& bench : All()) {
    text += fmt::format("  {:<14}{}\n", bench.name + (bench.only_named ? " *" : ""), bench.what);
  }
  return text;
}

int Main(int argc, char** argv) {
  BenchOptions options;
  std::string json_path;
  std::string base_dir = ".";
  std::string bytes;
  std::vector<std::string> names;
  CLI::App app("Compares Holdfast with a reference in the same run.");
  app.footer(Names());
  app.add_flag("--quick", options.quick,
               "less data, one repetition: a check that everything works");
  app.add_option("--repeat", options.repeat, "repetitions of each benchmark")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--json", json_path,
                 "also write {\"schema\": 2, \"machine\": {…}, \"results\": […]}");
  app.add_option("--dir", base_dir, "folder on the disk to measure")->capture_default_str();
  app.add_option(
      "--into", options.into,
      "update the table (and plot) of growth, torch or fault-matrix in this Markdown file");
  app.add_option("--ranks", options.ranks, "torch: numbers of ranks; fault-matrix: sizes of jobs");
  app.add_option("--steps", options.steps, "torch: steps of the training that saves each step");
  app.add_option("--bytes", bytes, "gpu: bytes of the state, such as 8GiB");
  app.add_option("--seeds", options.seeds, "fault-matrix: runs per cell");
  app.add_option("--keep", options.keep,
                 "fault-matrix: file of outcomes; runs in it are not repeated");
  std::map<std::string, std::string> programs;
  for (const char* option : {"--family", "--fault", "--behaviour", "--minutes", "--cost-ranks"}) {
    app.add_option(option, programs[option],
                   "fault-matrix: see holdfast-fault-matrix --help (families, faults, …)");
  }
  app.add_option("NAME", names, "run only these benchmarks");
  CLI11_PARSE(app, argc, argv);
  for (const auto& [option, value] : programs) {
    if (value.empty()) continue;
    options.programs.push_back(option);
    options.programs.push_back(value);
  }
  if (!AreKnown(names)) return 1;
  if (!bytes.empty()) {
    const auto parsed = ParseBytes(bytes);
    if (!parsed || *parsed < kGpuBytesMin) {
      std::fprintf(stderr, "--bytes %s: write a size of at least %s\n", bytes.c_str(),
                   FormatBytes(kGpuBytesMin).c_str());
      return 1;
    }
    options.bytes = *parsed;
  }
  if (options.quick && app.count("--repeat") == 0) options.repeat = 1;

  std::vector<BenchResult> results;
  int exit_code = 0;
  std::printf("%s\n", TableHead().c_str());
  for (const Bench& bench : All()) {
    const bool named = std::find(names.begin(), names.end(), bench.name) != names.end();
    if (names.empty() ? bench.only_named : !named) continue;
    options.dir = std::filesystem::absolute(base_dir) / ("holdfast-bench-" + bench.name);
    auto outcome = RunRepeated(bench, options);
    if (!outcome) {
      std::fprintf(stderr, "%s: %s\n", bench.name.c_str(), outcome.error().ToString().c_str());
      exit_code = 1;
      continue;
    }
    for (const BenchResult& result : *outcome) {
      std::printf("%s\n", TableRow(result).c_str());
      std::fflush(stdout);
      results.push_back(result);
    }
  }
  if (!json_path.empty() && !(std::ofstream(json_path) << Document(results).dump(2) << "\n")) {
    std::fprintf(stderr, "cannot write %s\n", json_path.c_str());
    exit_code = 1;
  }
  return exit_code;
}

}  // namespace
}  // namespace holdfast::bench

// An exception may end this program.  NOLINTNEXTLINE(bugprone-exception-escape)
int main(int argc, char** argv) { return holdfast::bench::Main(argc, argv); }
