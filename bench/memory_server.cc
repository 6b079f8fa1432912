#include "bench/memory_server.h"

#include <fmt/format.h>

#include <thread>

#include "bench/bench.h"

namespace holdfast::bench {
namespace {

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
      return have == bytes
                 ? Status::Ok()
                 : InternalError(fmt::format("the stream ended after {} of {} bytes", have, bytes));
    }
  }
}

/// Runs `work(i)` for all i concurrently. Returns the first error.
template <typename Work>
Status RunConcurrently(size_t count, Work work) {
  std::vector<Status> results(count);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < count; ++i) threads.emplace_back([&, i] { results[i] = work(i); });
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : results) HOLDFAST_RETURN_IF_ERROR(status);
  return Status::Ok();
}

}  // namespace

class MemoryServer::Source final : public agent::PeerSource {
 public:
  explicit Source(std::span<const std::byte> memory) : memory_(memory) {}

  Result<std::unique_ptr<agent::PeerReader>> Open(const agent::PeerRequest& /*request*/) override {
    return std::make_unique<Reader>(memory_);
  }

 private:
  class Reader final : public agent::PeerReader {
   public:
    explicit Reader(std::span<const std::byte> memory) : memory_(memory) {}
    Result<std::span<const std::byte>> Read(uint64_t offset, uint64_t bytes,
                                            Clock::TimePoint /*deadline*/) override {
      const uint64_t at = offset % memory_.size();
      return memory_.subspan(at, std::min(bytes, memory_.size() - at));
    }

   private:
    std::span<const std::byte> memory_;
  };
  std::span<const std::byte> memory_;
};

MemoryServer::MemoryServer() = default;
MemoryServer::~MemoryServer() = default;

Result<std::unique_ptr<MemoryServer>> MemoryServer::Start(std::span<const std::byte> memory,
                                                          uint64_t rate_bytes_per_s) {
  std::unique_ptr<MemoryServer> made(new MemoryServer);
  made->memory_bytes_ = memory.size();
  made->source_ = std::make_unique<Source>(memory);
  agent::TcpPeerServerOptions options;
  options.cluster = "bench";
  options.node = "server";
  options.pace.rate_bytes_per_s = rate_bytes_per_s;
  HOLDFAST_ASSIGN_OR_RETURN(made->server_,
                            agent::TcpPeerServer::Start(options, *made->source_, Clock::Real()));
  return made;
}

Result<double> MemoryServer::Read(agent::PeerTransport& transport, int streams,
                                  uint64_t bytes) const {
  const auto count = static_cast<size_t>(streams);
  Status status;
  const double seconds = SecondsOf([&] {
    status = RunConcurrently(count, [&](size_t i) {
      // Each stream reads its own region, as streams of different segments do.
      const uint64_t offset = i * (memory_bytes_ / count) / agent::kPeerUnitBytes;
      return ReadStream(transport, server_->address(), offset * agent::kPeerUnitBytes,
                        bytes / count);
    });
  });
  HOLDFAST_RETURN_IF_ERROR(status);
  return seconds;
}

Result<std::unique_ptr<agent::PeerTransport>> MakeBenchTransport() {
  agent::TcpTransportOptions options;
  options.cluster = "bench";
  options.node = "client";
  return agent::MakeTcpTransport(options, Clock::Real());
}

Result<double> TransportSeconds(int nodes, int streams, uint64_t bytes, uint64_t rate_bytes_per_s) {
  constexpr uint64_t kMemoryBytes = 64ULL << 20;  // per node; more than the caches
  std::vector<std::vector<std::byte>> memories;
  std::vector<std::unique_ptr<MemoryServer>> servers;
  for (int node = 0; node < nodes; ++node) {
    auto& memory = memories.emplace_back(kMemoryBytes);
    FillRandom(memory.data(), memory.size(), static_cast<uint64_t>(node) + 1);
    HOLDFAST_ASSIGN_OR_RETURN(auto server, MemoryServer::Start(memory, rate_bytes_per_s));
    servers.push_back(std::move(server));
  }
  HOLDFAST_ASSIGN_OR_RETURN(auto transport, MakeBenchTransport());
  Status status;
  const double seconds = SecondsOf([&] {
    status = RunConcurrently(servers.size(), [&](size_t node) -> Status {
      auto read = servers[node]->Read(*transport, streams, bytes);
      return read ? Status::Ok() : read.error();
    });
  });
  HOLDFAST_RETURN_IF_ERROR(status);
  return seconds;
}

}  // namespace holdfast::bench
