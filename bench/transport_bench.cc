// Peer transport over loopback TCP, from memory on the server into a buffer of the reader, with all
// checksums, compared with iperf3 with the same number of streams.

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "bench/bench.h"
#include "bench/iperf.h"
#include "bench/memory_server.h"

namespace holdfast::bench {
namespace {

// One unit sent repeatedly, as iperf3 sends one buffer repeatedly.
constexpr uint64_t kHotBytes = agent::kPeerUnitBytes;
// More than a core's own caches, like a slot. iperf3 has no such mode.
constexpr uint64_t kColdBytes = 256ULL << 20;

struct Case {
  std::string name;
  int streams;
  uint64_t memory_bytes;
  std::string goal;
  std::string note;
};

Result<BenchResult> RunCase(const Case& one, const IperfServer& iperf) {
  std::vector<std::byte> memory(one.memory_bytes);
  FillRandom(memory.data(), memory.size(), 5);
  HOLDFAST_ASSIGN_OR_RETURN(const auto server, MemoryServer::Start(memory, 0));
  HOLDFAST_ASSIGN_OR_RETURN(const auto transport, MakeBenchTransport());
  const uint64_t bytes = 2ULL << 30;
  std::vector<double> ours;
  std::vector<double> reference;
  std::vector<double> ratios;  // of adjacent runs
  for (int round = 0; round < 3; ++round) {
    HOLDFAST_ASSIGN_OR_RETURN(const double seconds, server->Read(*transport, one.streams, bytes));
    ours.push_back(static_cast<double>(bytes) / seconds / 1e9);
    HOLDFAST_ASSIGN_OR_RETURN(const double iperf_rate, iperf.Run(one.streams, 1));
    reference.push_back(iperf_rate / 1e9);
    ratios.push_back(ours.back() / reference.back());
  }
  return BenchResult{.name = one.name,
                     .ratio = Median(ratios),
                     .ours = Median(ours),
                     .reference = Median(reference),
                     .unit = "GB/s",
                     .goal = one.goal,
                     .note = one.note};
}

}  // namespace

Result<std::vector<BenchResult>> RunTransport(const BenchOptions& /*options*/) {
  const Case cases[] = {
      {"transport_1", 1, kHotBytes, ">=0.9",
       "checksummed units over loopback TCP ÷ iperf3 -P 1, each from one buffer"},
      {"transport_4", 4, kHotBytes, ">=0.9", "the same, four streams ÷ iperf3 -P 4"},
      {"transport_1_cold", 1, kColdBytes, "",
       "from 256 MiB, so that each byte is read from memory, unlike iperf3's"},
      {"transport_4_cold", 4, kColdBytes, "", "the same, four streams"},
  };
  HOLDFAST_ASSIGN_OR_RETURN(const IperfServer iperf, IperfServer::Start());
  std::vector<BenchResult> results;
  for (const Case& one : cases) {
    HOLDFAST_ASSIGN_OR_RETURN(BenchResult result, RunCase(one, iperf));
    results.push_back(std::move(result));
  }
  return results;
}

}  // namespace holdfast::bench
