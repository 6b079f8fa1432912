#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "agent/pipeline/damage_tracker.h"
#include "agent/pipeline/rank_registry.h"

namespace holdfast::agent {

/// A reader of a shard in this node's memory. Keeps the memory mapped and the slot pinned.
class ShardReader {
 public:
  virtual ~ShardReader() = default;
  virtual const ShardSeal& seal() const = 0;
  /// Copies chunk `index` into `into`, which has the chunk's length, and checks it. DataLoss: the
  /// chunk does not match the seal.
  virtual Status CopyChunk(uint64_t index, std::span<std::byte> into) = 0;
  /// As CopyChunk; resizes `into` to the chunk's length.
  virtual Status ReadChunk(uint64_t index, std::vector<std::byte>* into) = 0;
};

/// Reads the sealed shards in this node's memory, retained segments included. Thread-safe; has no
/// mutex.
class MemoryShards {
 public:
  /// The arguments outlive the object; `node` is this node's name.
  MemoryShards(std::string node, RankRegistry& ranks, DamageTracker& damage)
      : node_(std::move(node)), ranks_(ranks), damage_(damage) {}

  /// NotFound: memory has no intact replica of the shard.
  Result<std::unique_ptr<ShardReader>> Open(const ShardKey& key);
  /// Checks the shard's seal, and with `deep` all its chunks, and returns the seal in `seal`.
  /// Damage is reported.
  Status Verify(const ShardKey& key, bool deep, ShardSeal* seal);
  /// Returns the shards that must stay in memory. A save may take the slots of the others.
  std::vector<ShardKey> Kept();
  /// Checks one chunk against the seal. Returns its length, or 0 after the last chunk. NotFound:
  /// the shard was removed. DataLoss: the chunk does not match.
  Result<uint64_t> CheckChunk(const ShardKey& key, uint64_t chunk);

 private:
  const std::string node_;
  RankRegistry& ranks_;
  DamageTracker& damage_;
};

}  // namespace holdfast::agent
