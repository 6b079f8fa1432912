#include "cli/shards/agent_chunks.h"

#include <fmt/format.h>

#include <cstring>

#include "base/tiers.h"

namespace holdfast::cli {

namespace {

/// Stores the seal.
class SealSink : public ShardSink {
 public:
  Status Begin(const ShardSeal& seal) override {
    seal_ = seal;
    return Status::Ok();
  }
  Status Chunk(uint64_t /*offset*/, std::span<const std::byte> /*bytes*/) override {
    return Status::Ok();
  }
  ShardSeal& seal() { return seal_; }

 private:
  ShardSeal seal_;
};

/// Fills consecutive chunks.
class RunSink : public ShardSink {
 public:
  RunSink(const ShardSeal& wanted, std::span<WantedChunk> run) : wanted_(wanted), run_(run) {}
  Status Begin(const ShardSeal& seal) override {
    if (SameImage(seal, wanted_)) return Status::Ok();
    return NotFoundError("the replica there is another image than the wanted one");
  }
  Status Chunk(uint64_t /*offset*/, std::span<const std::byte> bytes) override {
    WantedChunk& chunk = run_[next_++];
    std::memcpy(chunk.into.data(), bytes.data(), bytes.size());
    chunk.done = true;
    return Status::Ok();
  }

 private:
  const ShardSeal& wanted_;
  const std::span<WantedChunk> run_;
  size_t next_ = 0;
};

}  // namespace

SourceCost AgentChunks::cost() const {
  if (tier_ == Tier::kMemory) return SourceCost::kPeerMemory;
  return TraitsOf(tier_).reporter == TierReporter::kShared ? SourceCost::kRemote
                                                           : SourceCost::kPeerDisk;
}

std::string AgentChunks::where() const { return fmt::format("{} on {}", ToString(tier_), node_); }

Result<const AgentClient*> AgentChunks::Client() {
  MutexLock lock(mutex_);
  if (!client_) {
    HOLDFAST_ASSIGN_OR_RETURN(client_, AgentClient::Open(node_, address_, options_, clock_));
  }
  return &*client_;
}

Result<ShardSeal> AgentChunks::ReadSeal() {
  HOLDFAST_ASSIGN_OR_RETURN(const AgentClient* client, Client());
  SealSink sink;
  HOLDFAST_RETURN_IF_ERROR(client->ReadPart(key_, tier_, 0, 0, sink));
  return std::move(sink.seal());
}

Status AgentChunks::Read(const ShardSeal& seal, std::span<WantedChunk> chunks) {
  HOLDFAST_RETURN_IF_ERROR(CheckWanted(key_, seal, chunks));
  HOLDFAST_ASSIGN_OR_RETURN(const AgentClient* client, Client());
  return ReadRuns(chunks, [&](std::span<WantedChunk> run) {
    uint64_t bytes = 0;
    for (const WantedChunk& chunk : run) bytes += chunk.into.size();
    RunSink sink(seal, run);
    return client->ReadPart(key_, tier_, run.front().index * kChunkBytes, bytes, sink);
  });
}

}  // namespace holdfast::cli
