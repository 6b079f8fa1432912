// The agent's memory without its arena, after a series of saves.

#include <fmt/format.h>

#include <fstream>

#include "bench/bench.h"
#include "bench/live_client.h"

namespace holdfast::bench {
namespace {
/// Returns a field of /proc/<pid>/status in MiB.
double StatusField(pid_t pid, const std::string& field) {
  std::ifstream file(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(field + ":", 0) == 0) return std::stod(line.substr(field.size() + 1)) / 1024;
  }
  return 0;
}
}  // namespace

Result<std::vector<BenchResult>> RunMemory(const BenchOptions& options) {
  const uint64_t bytes = options.quick ? 128ULL << 20 : 512ULL << 20;
  HOLDFAST_ASSIGN_OR_RETURN(LiveClient live, LiveClient::Start(options.dir, bytes, 1000, 1));
  HOLDFAST_ASSIGN_OR_RETURN(v1::Client client, live.Open("memory"));
  const uint64_t steps = options.quick ? 10 : 30;
  for (uint64_t step = 1; step <= steps; ++step) {
    HOLDFAST_RETURN_IF_ERROR(FromClient(client.Save(step)));
    HOLDFAST_RETURN_IF_ERROR(
        FromClient(client.Wait(step, v1::Tier::kMemory, std::chrono::seconds(60))));
  }
  pid_t pid = live.cluster->agent(0).pid();
  double own = StatusField(pid, "RssAnon") + StatusField(pid, "RssFile");
  return std::vector<BenchResult>{
      {.name = "agent_memory",
       .ratio = own / 64,
       .ours = own,
       .reference = 64,
       .unit = "MiB",
       .goal = "<=1",
       .note = fmt::format("without the arena; shared memory {:.0f} MiB; anonymous {:.0f} MiB",
                           StatusField(pid, "RssShmem"), StatusField(pid, "RssAnon"))}};
}

}  // namespace holdfast::bench
