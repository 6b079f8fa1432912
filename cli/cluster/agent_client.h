#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "agent/api/agent.grpc.pb.h"
#include "base/clock.h"
#include "base/ids.h"
#include "cli/core/options.h"
#include "storage/format/seal.h"

namespace holdfast::cli {

/// Receives a part of a shard in order. Every chunk has been compared with the seal.
class ShardSink {
 public:
  virtual ~ShardSink() = default;
  virtual Status Begin(const ShardSeal& seal) = 0;
  virtual Status Chunk(uint64_t offset, std::span<const std::byte> bytes) = 0;
};

/// The data service of one agent. Thread-safe.
class AgentClient {
 public:
  /// `name` is the node's name, for messages. `clock` outlives the client.
  static Result<AgentClient> Open(const std::string& name, const std::string& address,
                                  const GlobalOptions& options, const Clock& clock);

  /// Streams the image bytes [offset, offset + bytes) of a shard into `sink`, in complete chunks.
  /// `offset` is a chunk's first byte. The seal must be of `key`, and each piece must be the next
  /// complete chunk and match its CRC-32C; otherwise returns DataLoss with node, shard and chunk.
  /// Returns DeadlineExceeded when nothing arrives for the time-out.
  Status ReadPart(const ShardKey& key, Tier tier, uint64_t offset, uint64_t bytes,
                  ShardSink& sink) const;
  /// Makes the agent verify a shard. The time-out of a deep check grows with `image_bytes`.
  Status VerifyShard(const ShardKey& key, Tier tier, bool deep, uint64_t image_bytes,
                     uint64_t* digest = nullptr) const;
  /// Returns a piece of a worker's output from `offset` on; empty: no more yet.
  Result<std::string> ReadWorkerLog(const std::string& job, const std::string& run_id, Rank rank,
                                    uint64_t offset) const;
  /// Returns the agent's live state as JSON.
  Result<std::string> Dump() const;

 private:
  AgentClient(std::unique_ptr<agent::Agent::Stub> stub, std::string peer, int64_t timeout_ms,
              const Clock& clock)
      : stub_(std::move(stub)), peer_(std::move(peer)), timeout_ms_(timeout_ms), clock_(&clock) {}

  Status ReadOnce(const ShardKey& key, const agent::ReadShardRequest& request, ShardSink& sink,
                  bool* busy) const;
  /// Repeats `attempt` while it sets *busy, until the time-out: an agent serves only a few readers
  /// at once and refuses more.
  Status RetryBusy(const std::function<Status(bool* busy)>& attempt) const;

  std::unique_ptr<agent::Agent::Stub> stub_;
  std::string peer_;  // "the agent of node n1 at unix:/…"
  int64_t timeout_ms_;
  const Clock* clock_;
};

}  // namespace holdfast::cli
