// The benchmarks of the coordinator are separate programs: one links the server, and the other
// needs all of gRPC's threads of its process. This file runs them and reads the JSON lines that
// they print.

#include <array>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "bench/bench.h"
#include "testing/cluster/process.h"

namespace holdfast::bench {

namespace {
Result<std::vector<BenchResult>> RunProgram(const std::string& arguments) {
  const std::string command = local::BinaryDir() + "/" + arguments;
  std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), ::pclose);
  if (!pipe) return Fail(InternalError("popen failed"));
  std::string out;
  std::array<char, 4096> block{};
  for (size_t n; (n = fread(block.data(), 1, block.size(), pipe.get())) > 0;) {
    out.append(block.data(), n);
  }
  std::vector<BenchResult> results;
  for (size_t begin = 0, end; (end = out.find('\n', begin)) != std::string::npos; begin = end + 1) {
    auto line = nlohmann::json::parse(out.substr(begin, end - begin), nullptr, false);
    if (!line.is_object()) continue;
    results.push_back({.name = line.value("name", ""),
                       .ratio = line.value("ratio", 0.0),
                       .ours = line.value("ours", 0.0),
                       .reference = line.value("reference", 0.0),
                       .unit = line.value("unit", ""),
                       .goal = line.value("goal", ""),
                       .note = line.value("note", "")});
  }
  if (results.empty()) return Fail(InternalError(command + " printed no results"));
  return results;
}

/// Simulated agents with 8 ranks each.
Result<std::vector<BenchResult>> RunScale(const BenchOptions& options, const std::string& name,
                                          uint32_t nodes, const std::string& more = "") {
  const std::string sizes = options.quick ? " --versions 5 --seconds 2" : " --versions 60";
  return RunProgram("holdfast-scale-bench --name " + name + " --nodes " + std::to_string(nodes) +
                    sizes + more + " --dir " + options.dir);
}
}  // namespace

Result<std::vector<BenchResult>> RunCoordinator(const BenchOptions& options) {
  return RunProgram("holdfast-coordinator-bench --dir " + options.dir +
                    (options.quick ? " --quick" : ""));
}

Result<std::vector<BenchResult>> RunCommit1024(const BenchOptions& options) {
  return RunScale(options, "commit_1024", 128);
}

/// The goals are those of a coordinator on one core.
Result<std::vector<BenchResult>> RunCommit16384(const BenchOptions& options) {
  const bool own_core = std::thread::hardware_concurrency() > 1;
  return RunScale(options, "commit_16384", 2048,
                  own_core ? " --relays 2 --own-core" : " --relays 2");
}

/// A version in ten seconds, and a long lease: the agents and the relays share the cores of the
/// machine.
Result<std::vector<BenchResult>> RunCommit98352(const BenchOptions& options) {
  const std::string sizes = options.quick ? "--nodes 90 --versions 5 --seconds 2"
                                          : "--nodes 12294 --versions 6 --seconds 10";
  return RunProgram(
      "holdfast-scale-bench --name commit_98352 --relays 9 --interval 10 "
      "--telemetry 0.2 --patience 300 --lease 30000 " +
      sizes + " --dir " + options.dir);
}

Result<std::vector<BenchResult>> RunAbsentCoordinator(const BenchOptions& options) {
  return RunProgram(std::string("holdfast-absent-bench --seconds ") +
                    (options.quick ? "5" : "600"));
}

Result<std::vector<BenchResult>> RunAttach2048(const BenchOptions& options) {
  return RunScale(options, "attach_2048", 2048, " --attach");
}

}  // namespace holdfast::bench
