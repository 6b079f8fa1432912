#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "client/core/options.h"
#include "storage/format/image.h"
#include "storage/format/overlap.h"
#include "storage/format/version_index.h"

// Plans a load: which bytes of which shards to read for the requested tensors. Pure.

namespace holdfast::client {

/// The shard that a reader knows without the index, as its image's header describes it.
struct PlannedShard {
  uint32_t rank = 0;
  ParsedImage image;
  /// Indices of the image's tensors, by the name of the tensor that they are slices of.
  std::map<std::string, std::vector<uint32_t>, std::less<>> by_name;

  PlannedShard(uint32_t rank_in, ParsedImage image_in);
};

/// Bytes of one shard that are read in one request, and the copies that need bytes of it.
struct ReadUnit {
  uint32_t rank = 0;    // of the shard
  uint64_t offset = 0;  // in the image: a chunk's first byte
  uint64_t bytes = 0;
  std::vector<uint32_t> copies;
};

/// The elements that one tensor takes from one piece of a shard.
struct PlannedCopy {
  BoxCopy copy;
  uint64_t image_begin = 0;  // of the piece
  std::byte* target = nullptr;

  /// Copies the elements that are in `unit`, whose bytes are at `data`.
  void Run(const ReadUnit& unit, const std::byte* data) const;
};

struct LoadPlan {
  std::vector<PlannedCopy> copies;
  std::vector<ReadUnit> units;  // in the order in which to read them
};

/// What a plan is made from.
struct KnownShards {
  const PlannedShard* own = nullptr;    // the shard to prefer
  const VersionIndex* index = nullptr;  // of all shards; may be null
  std::span<const uint32_t> near;       // ranks whose shards are on this node, ascending
};

/// Plans how each of the wanted tensors is filled, every element once. Prefers the own shard, then
/// shards on this node. Among the other shards, different values of `reader` begin at different
/// replicas. Units have at most `unit_bytes`. Adds one sentence to `differences` for each tensor
/// that is missing, has another dtype or global shape, or is not covered. Returns nothing when the
/// own shard does not suffice and there is no index. DataLoss: the index is damaged.
Result<std::optional<LoadPlan>> PlanLoad(const KnownShards& known, const StateDescription& wanted,
                                         uint32_t reader, uint64_t unit_bytes,
                                         std::vector<std::string>* differences);

}  // namespace holdfast::client
