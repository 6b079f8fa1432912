// Runs benchmarks and prints them as a table and, with --json, as data. Exit code 0 whatever the
// ratios: they are for reading; 1 only when one could not run.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bench/bench.h"
#include "deploy/local/cluster.h"

namespace holdfast::bench {
namespace {

const std::vector<Bench>& All() {
  static const std::vector<Bench> all = {
      {"checksum", "CRC-32C ÷ bare ISA-L", RunChecksum},
      {"erasure", "encode and decode ÷ bare ISA-L", RunErasure},
      {"transport", "peer transport over loopback ÷ iperf3", RunTransport},
      {"parity", "sealed → committed at peer ÷ the slower of transport and encode; bytes sent",
       RunParity},
      {"rebuild", "a lost node's shard decoded ÷ the same bytes from one node", RunRebuild},
      {"slowdown", "training with parity of every step ÷ without peers", RunSlowdown},
      {"growth", "time and bytes of parity for groups of 2 to 16 nodes", RunGrowth},
      {"disk", "slot → durable and back ÷ fio", RunDisk},
      {"streaming", "Save → durable ÷ the slowest stage alone", RunStreaming},
      {"stall", "training with a checkpoint every step ÷ without", RunStall},
      {"restore", "restore ÷ memcpy", RunRestore},
      {"view", "a version read by another number of ranks ÷ memcpy", RunView},
      {"memory", "the agent's own memory beside its arena", RunMemory},
      {"record", "what telling one event of a collective costs, nanoseconds", RunRecord},
      {"telemetry", "training that tells its collectives ÷ training that does not", RunTelemetry},
      {"recovery", "a killed rank → first new version ÷ plain start of the job", RunRecovery},
      {"slow_rank", "iterations until a rank that is a fifth late is named", RunSlowRank},
      {"coordinator", "commit rate and latency with 4 and 1,024 ranks", RunCoordinator},
#ifdef HOLDFAST_BENCH_GPU
      {"gpu", "device → sealed slot, restore, stall ÷ one pinned copy", RunGpu},
#endif
  };
  return all;
}

nlohmann::ordered_json ToJson(const BenchResult& result) {
  return {{"name", result.name}, {"ratio", result.ratio},
          {"ours", result.ours}, {"reference", result.reference},
          {"unit", result.unit}, {"goal", result.goal},
          {"note", result.note}};
}

int Main(int argc, char** argv) {
  BenchOptions options;
  std::string json_path;
  std::string base_dir = ".";
  std::vector<std::string> names;
  std::string footer = "Benchmarks:\n";
  for (const Bench& bench : All()) footer += fmt::format("  {:<12}{}\n", bench.name, bench.what);
  CLI::App app("Measures Holdfast beside a reference in the same run.");
  app.footer(footer);
  app.add_flag("--quick", options.quick, "less data, fewer rounds");
  app.add_option("--json", json_path, "also write {\"schema\": 1, \"results\": […]}");
  app.add_option("--dir", base_dir, "folder on the disk to measure")->capture_default_str();
  app.add_option("--growth-into", options.growth_file,
                 "put the table of `growth` into this Markdown file, its plot beside it");
  app.add_option("NAME", names, "only these");
  CLI11_PARSE(app, argc, argv);

  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  int exit_code = 0;
  std::printf("%-24s %8s %10s %10s %-8s %-8s %s\n", "NAME", "RATIO", "OURS", "REFERENCE", "UNIT",
              "GOAL", "NOTE");
  for (const Bench& bench : All()) {
    if (!names.empty() && std::find(names.begin(), names.end(), bench.name) == names.end())
      continue;
    options.dir = std::filesystem::absolute(base_dir) / ("holdfast-bench-" + bench.name);
    std::filesystem::remove_all(options.dir);
    std::filesystem::create_directories(options.dir);
    auto outcome = bench.run(options);
    std::filesystem::remove_all(options.dir);
    if (!outcome) {
      std::fprintf(stderr, "%s: %s\n", bench.name.c_str(), outcome.error().ToString().c_str());
      exit_code = 1;
      continue;
    }
    for (const BenchResult& result : *outcome) {
      std::printf("%-24s %8.3f %10.3f %10.3f %-8s %-8s %s\n", result.name.c_str(), result.ratio,
                  result.ours, result.reference, result.unit.c_str(), result.goal.c_str(),
                  result.note.c_str());
      std::fflush(stdout);
      results.push_back(ToJson(result));
    }
  }
  if (!json_path.empty()) {
    nlohmann::ordered_json document = {{"schema", 1}, {"results", results}};
    std::ofstream(json_path) << document.dump(2) << "\n";
  }
  return exit_code;
}

}  // namespace
}  // namespace holdfast::bench

// An exception may end this program.  NOLINTNEXTLINE(bugprone-exception-escape)
int main(int argc, char** argv) { return holdfast::bench::Main(argc, argv); }
