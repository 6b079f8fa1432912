// The coordinator's benchmark is a separate program, because it links the server. This file runs it
// and reads the JSON lines that it prints.

#include <array>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench/bench.h"
#include "testing/cluster/process.h"

namespace holdfast::bench {

Result<std::vector<BenchResult>> RunCoordinator(const BenchOptions& options) {
  std::string command = local::BinaryDir() + "/holdfast-coordinator-bench --dir " + options.dir +
                        (options.quick ? " --quick" : "");
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

}  // namespace holdfast::bench
