#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "agent/api/agent.grpc.pb.h"
#include "client/cli/options.h"
#include "storage/base/ids.h"
#include "storage/format/seal.h"

namespace holdfast::cli {

/// Takes a shard as it arrives, in order; every chunk was checked against the seal.
class ShardSink {
 public:
  virtual ~ShardSink() = default;
  virtual Status Begin(const ShardSeal& seal) = 0;
  virtual Status Chunk(uint64_t offset, std::span<const std::byte> bytes) = 0;
};

/// The data side of one agent. Thread-safe.
class AgentClient {
 public:
  /// `name` is the node's, for messages.
  static Result<AgentClient> Open(const std::string& name, const std::string& address,
                                  const GlobalOptions& options);

  /// Streams a shard into `sink`. The seal must be of `key`; each piece must be the next whole
  /// chunk and match its CRC-32C: otherwise DataLoss naming node, shard and chunk. Ends with
  /// DeadlineExceeded when nothing arrives for the time-out.
  Status ReadShard(const ShardKey& key, Tier tier, ShardSink& sink) const;
  /// Only the image bytes [offset, offset + bytes), from a chunk's first byte on; `sink` gets whole
  /// chunks.
  Status ReadPart(const ShardKey& key, Tier tier, uint64_t offset, uint64_t bytes,
                  ShardSink& sink) const;
  /// Has the agent check a shard. A deep check of `image_bytes` gets more time than the time-out.
  Status VerifyShard(const ShardKey& key, Tier tier, bool deep, uint64_t image_bytes) const;
  /// What a worker said from `offset` on, a piece of it; empty: no more yet.
  Result<std::string> ReadWorkerLog(const std::string& job, const std::string& run_id, Rank rank,
                                    uint64_t offset) const;
  /// Causes a failure there (or only says which, as the request has it); returns what it is.
  Result<std::string> InjectFault(const agent::InjectFaultRequest& request) const;
  /// Undoes what the drill of this name began there. Also after an interruption.
  Status EndFault(const std::string& drill) const;
  /// The agent's live state.
  Result<std::string> Dump() const;

 private:
  AgentClient(std::unique_ptr<agent::Agent::Stub> stub, std::string peer, int64_t timeout_ms)
      : stub_(std::move(stub)), peer_(std::move(peer)), timeout_ms_(timeout_ms) {}

  Status ReadOnce(const ShardKey& key, const agent::ReadShardRequest& request, ShardSink& sink,
                  bool* busy) const;
  /// An agent serves a few readers at once and refuses further ones for the moment: repeats
  /// `attempt` while it sets *busy and the time-out has not passed.
  Status RetryBusy(const std::function<Status(bool* busy)>& attempt) const;

  std::unique_ptr<agent::Agent::Stub> stub_;
  std::string peer_;  // "the agent of node n1 at unix:/…"
  int64_t timeout_ms_;
};

}  // namespace holdfast::cli
