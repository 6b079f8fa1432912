#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "client/core/options.h"
#include "storage/format/image.h"
#include "storage/format/overlap.h"

// Plans a load: which bytes of which shards to read for the requested tensors. Pure.

namespace holdfast::client {

/// One shard of a version, as its image's header describes it.
struct PlannedShard {
  uint32_t rank = 0;
  bool near = false;  // stored on this node
  ParsedImage image;
};

/// Bytes of one shard that are read in one request, and the copies that need bytes of it.
struct ReadUnit {
  uint32_t shard = 0;   // index of the shard
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

/// The pieces of each tensor, by name: index of the shard, index of the tensor in its image.
using PieceIndex = std::map<std::string, std::vector<std::pair<uint32_t, uint32_t>>, std::less<>>;
PieceIndex IndexPieces(std::span<const PlannedShard> shards);

/// Plans how each of the wanted tensors is filled, every element once. Prefers shards on this node.
/// Among the other shards, different values of `reader` begin at different replicas. Units have at
/// most `unit_bytes`. Adds one sentence to `differences` for each tensor that is missing, has
/// another dtype or global shape, or is not covered.
LoadPlan PlanLoad(std::span<const PlannedShard> shards, const PieceIndex& pieces,
                  const StateDescription& wanted, uint32_t reader, uint64_t unit_bytes,
                  std::vector<std::string>* differences);

}  // namespace holdfast::client
