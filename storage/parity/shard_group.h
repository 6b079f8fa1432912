#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "storage/parity/group_plan.h"

namespace holdfast {

struct ParsedImage;

/// A data shard that a parity shard protects, as the parity shard lists it.
struct ListedShard {
  Rank rank;
  uint64_t digest = 0;
  uint64_t image_bytes = 0;
  bool operator==(const ListedShard&) const = default;
};

/// What a parity shard lists about its group: the plan, and the data shards of all members.
struct ShardGroup {
  GroupPlan plan;
  std::vector<ListedShard> shards;  // ascending by rank
  bool operator==(const ShardGroup&) const = default;
};

/// Image bytes [begin, end).
struct ImageRange {
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t bytes() const { return end - begin; }
};

/// Returns where the seals of the group are in the image of a parity shard. DataLoss if the image
/// is not one.
Result<ImageRange> SealsOf(const ParsedImage& image);

/// Parses the description of a group: the bytes of SealsOf(), and the extra state of the image.
/// DataLoss unless the seals are those of the plan's ranks, of the version of `parity`.
Result<ShardGroup> ParseShardGroup(const ShardIdentity& parity, std::span<const std::byte> seals,
                                   std::string_view extra);

}  // namespace holdfast
