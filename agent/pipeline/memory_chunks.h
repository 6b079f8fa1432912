#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "agent/pipeline/rank_registry.h"
#include "storage/chunks/chunk_source.h"

namespace holdfast::agent {

/// A sealed replica in the memory of this node, retained segments included. The good chunks of a
/// damaged replica are read, too. The slot is pinned only while it is read.
class MemoryChunks final : public ChunkSource {
 public:
  /// `ranks` outlives the source.
  MemoryChunks(RankRegistry& ranks, ShardKey key) : ranks_(ranks), key_(std::move(key)) {}

  SourceCost cost() const override { return SourceCost::kMemory; }
  std::string where() const override { return "in this node's memory"; }
  std::optional<Tier> local_tier() const override { return Tier::kMemory; }
  Result<ShardSeal> ReadSeal() override;
  Status Read(const ShardSeal& seal, std::span<WantedChunk> chunks) override;

 private:
  class PinnedSlot;
  Result<std::unique_ptr<PinnedSlot>> Pin();

  RankRegistry& ranks_;
  const ShardKey key_;
};

}  // namespace holdfast::agent
