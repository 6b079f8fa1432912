#include "storage/parity/shard_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "storage/format/image.h"
#include "storage/parity/parity_image.h"

namespace holdfast {

Result<ImageRange> SealsOf(const ParsedImage& image) {
  const auto seals = std::find_if(image.tensors.begin(), image.tensors.end(),
                                  [](const PlacedTensor& one) { return one.spec.name == "seals"; });
  const bool described = image.extras.size() == 1 && image.extras.front().name == "group";
  if (!IsParity(image.identity.rank) || seals == image.tensors.end() || !described) {
    return Fail(DataLossError("the image of a parity shard does not describe its group"));
  }
  return ImageRange{image.data_offset + seals->begin, image.data_offset + seals->end};
}

Result<ShardGroup> ParseShardGroup(const ShardIdentity& parity, std::span<const std::byte> seals,
                                   std::string_view extra) {
  HOLDFAST_ASSIGN_OR_RETURN(GroupPlan plan, GroupPlan::FromJson(extra));
  HOLDFAST_ASSIGN_OR_RETURN(const std::vector<ShardSeal> listed, ParseSeals(seals));
  std::set<Rank> left;
  for (const PlanMember& member : plan.members()) {
    for (const PlanRank& rank : member.ranks) left.insert(rank.rank);
  }
  ShardGroup group{std::move(plan), {}};
  for (const ShardSeal& seal : listed) {
    const ShardIdentity& of = seal.identity;
    if (of.job != parity.job || of.version != parity.version || of.world != parity.world) {
      return Fail(DataLossError("the parity shard lists the seal of " + ToString(of.key())));
    }
    if (left.erase(of.rank) == 0) {
      return Fail(DataLossError(
          fmt::format("the parity shard lists {}, which its plan does not", ShardName(of.rank))));
    }
    group.shards.push_back({of.rank, seal.digest(), seal.image_bytes});
  }
  if (!left.empty()) {
    return Fail(DataLossError(
        fmt::format("the parity shard does not list the seal of {}", ShardName(*left.begin()))));
  }
  std::sort(group.shards.begin(), group.shards.end(),
            [](const ListedShard& a, const ListedShard& b) { return a.rank < b.rank; });
  return group;
}

}  // namespace holdfast
