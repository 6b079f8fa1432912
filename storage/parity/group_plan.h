#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "storage/base/ids.h"
#include "storage/base/status.h"
#include "storage/erasure/stripe_layout.h"

namespace holdfast {

/// A rank of a member and the room it has in the member's node image.
struct PlanRank {
  Rank rank;
  uint64_t slot_bytes = 0;
  bool operator==(const PlanRank&) const = default;
};

/// A node of a parity group.
struct PlanMember {
  std::string node;
  std::string address;  // of its peer listener; empty: cannot be reached now
  uint32_t number =
      0;  // in the job's plan, over all groups: its parity shard is ParityRank(number)
  std::vector<PlanRank> ranks;  // ascending
  /// Of a version to be decoded, in memory or on disk: all its ranks' shards; its parity shard.
  bool has_data = false;
  bool has_parity = false;
  /// The member's name when the plan was made, where `node` has taken its place; empty: `node`.
  std::string planned = {};
  bool operator==(const PlanMember&) const = default;
};

/// Nodes that protect each other, and where every byte of theirs is. A member's node image is its
/// ranks' slots one after the other; what a shard does not fill is zeros. Constant for an
/// incarnation. A value.
class GroupPlan {
 public:
  /// InvalidArgument for ranks that are not ascending or anything StripeLayout refuses.
  static Result<GroupPlan> Make(std::vector<PlanMember> members, uint32_t parity_count);
  /// As ToJson() writes it. DataLoss for anything else.
  static Result<GroupPlan> FromJson(std::string_view json);
  /// Compact. With what is so now (addresses, who has what) for a request to decode; without for
  /// the description in a parity shard.
  std::string ToJson(bool as_of_now) const;

  const std::vector<PlanMember>& members() const { return members_; }
  const StripeLayout& layout() const { return layout_; }
  std::optional<uint32_t> PositionOf(std::string_view node) const;
  std::optional<uint32_t> PositionOf(Rank rank) const;
  std::optional<uint32_t> PositionOfNumber(uint32_t number) const;

  /// A run of one rank's image inside a range of its member's node image.
  struct Piece {
    Rank rank;
    uint64_t rank_offset = 0;   // in the rank's image
    uint64_t range_offset = 0;  // in the range that was asked for
    uint64_t bytes = 0;
  };
  /// The node-image bytes [begin, end) of a member, by rank, in order.
  std::vector<Piece> Pieces(uint32_t position, uint64_t begin, uint64_t end) const;
  /// Where `rank`'s room begins in its member's node image.
  uint64_t RankBegin(uint32_t position, Rank rank) const;

  bool operator==(const GroupPlan&) const = default;

 private:
  GroupPlan(std::vector<PlanMember> members, StripeLayout layout)
      : members_(std::move(members)), layout_(std::move(layout)) {}

  std::vector<PlanMember> members_;
  StripeLayout layout_;
};

}  // namespace holdfast
