// Peer transport over loopback TCP, from a reader over memory into a reader's buffer with every
// checksum on, against iperf3 with the same number of streams.

#include <fmt/format.h>

#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "agent/peers/tcp_server.h"
#include "agent/peers/tcp_transport.h"
#include "bench/bench.h"
#include "bench/iperf.h"

namespace holdfast::bench {
namespace {

// iperf3 sends one small buffer again and again; this is as much at home in a cache.
constexpr uint64_t kWarmBytes = 16ULL << 20;
// As a slot is: more than a core's own caches hold.
constexpr uint64_t kColdBytes = 256ULL << 20;

/// Endless objects: the same memory again and again.
class MemorySource final : public agent::PeerSource {
 public:
  explicit MemorySource(std::span<const std::byte> memory) : memory_(memory) {}

  Result<std::unique_ptr<agent::PeerReader>> Open(const agent::PeerRequest& /*request*/) override {
    return std::make_unique<Reader>(memory_);
  }

 private:
  class Reader final : public agent::PeerReader {
   public:
    explicit Reader(std::span<const std::byte> memory) : memory_(memory) {}
    Result<std::span<const std::byte>> Read(uint64_t offset, uint64_t bytes,
                                            Clock::TimePoint /*deadline*/) override {
      return memory_.subspan(offset % memory_.size(), bytes);
    }

   private:
    std::span<const std::byte> memory_;
  };
  std::span<const std::byte> memory_;
};

Status ReadStream(agent::PeerTransport& transport, const std::string& address, uint64_t offset,
                  uint64_t bytes) {
  const auto deadline = Clock::Real().Now() + std::chrono::minutes(10);
  agent::PeerRequest request;
  request.job = "bench";
  request.version = {Incarnation{1}, Step{1}};
  request.incarnation = Incarnation{1};
  request.offset = offset;
  request.bytes = bytes;
  HOLDFAST_ASSIGN_OR_RETURN(auto stream, transport.Open(address, request, deadline));
  std::vector<std::byte> unit(agent::kPeerUnitBytes);
  for (uint64_t have = 0;;) {
    HOLDFAST_ASSIGN_OR_RETURN(const size_t got, stream->Read(unit, deadline));
    have += got;
    if (got == 0) {
      return have == bytes ? Status::Ok() : InternalError("the stream ended too early");
    }
  }
}

struct Case {
  std::string name;
  int streams;
  uint64_t memory_bytes;
  std::string goal;
  std::string note;
};

/// Bytes a second over the case's streams at once.
Result<double> RunOurs(const Case& one, agent::PeerTransport& transport, const std::string& address,
                       uint64_t bytes) {
  std::vector<Status> results(static_cast<size_t>(one.streams));
  const double seconds = SecondsOf([&] {
    std::vector<std::thread> threads;
    for (size_t i = 0; i < results.size(); ++i) {
      threads.emplace_back([&, i] {
        // Each reads elsewhere, as streams of different segments do.
        const uint64_t offset = i * (one.memory_bytes / results.size());
        results[i] = ReadStream(transport, address, offset, bytes / results.size());
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
  for (const Status& status : results) HOLDFAST_RETURN_IF_ERROR(status);
  return static_cast<double>(bytes) / seconds;
}

Result<BenchResult> RunCase(const Case& one, const IperfServer& iperf, bool quick) {
  std::vector<std::byte> memory(one.memory_bytes);
  FillRandom(memory.data(), memory.size(), 5);
  MemorySource source(memory);
  agent::TcpPeerServerOptions server_options;
  server_options.cluster = "bench";
  server_options.node = "server";
  HOLDFAST_ASSIGN_OR_RETURN(auto server, agent::TcpPeerServer::Start(server_options, source));
  agent::TcpTransportOptions transport_options;
  transport_options.cluster = "bench";
  transport_options.node = "client";
  HOLDFAST_ASSIGN_OR_RETURN(auto transport, agent::MakeTcpTransport(transport_options));
  std::vector<double> ours;
  std::vector<double> reference;
  for (int round = 0; round < (quick ? 3 : 9); ++round) {
    HOLDFAST_ASSIGN_OR_RETURN(const double rate, RunOurs(one, *transport, server->address(),
                                                         quick ? 2ULL << 30 : 8ULL << 30));
    ours.push_back(rate / 1e9);
    HOLDFAST_ASSIGN_OR_RETURN(const double iperf_rate, iperf.Run(one.streams, quick ? 1 : 2));
    reference.push_back(iperf_rate / 1e9);
  }
  return BenchResult{.name = one.name,
                     .ratio = Median(ours) / Median(reference),
                     .ours = Median(ours),
                     .reference = Median(reference),
                     .unit = "GB/s",
                     .goal = one.goal,
                     .note = one.note};
}

}  // namespace

Result<std::vector<BenchResult>> RunTransport(const BenchOptions& options) {
  const Case cases[] = {
      {"transport_1", 1, kWarmBytes, ">=0.9", "checksummed units over loopback TCP ÷ iperf3 -P 1"},
      {"transport_4", 4, kWarmBytes, ">=0.9", "checksummed units over loopback TCP ÷ iperf3 -P 4"},
      {"transport_1_cold", 1, kColdBytes, "",
       "the same out of 256 MiB, where each byte comes from memory first; iperf3's do not"},
  };
  HOLDFAST_ASSIGN_OR_RETURN(const IperfServer iperf, IperfServer::Start());
  std::vector<BenchResult> results;
  for (const Case& one : cases) {
    HOLDFAST_ASSIGN_OR_RETURN(BenchResult result, RunCase(one, iperf, options.quick));
    results.push_back(std::move(result));
  }
  return results;
}

}  // namespace holdfast::bench
