#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "storage/erasure/stripe_layout.h"

namespace holdfast {

/// The most ranks of one member: twice as many as any existing machine runs.
inline constexpr uint32_t kMemberRanksMax = 1024;

/// A rank of a member and the size of its slot in the member's node image.
struct PlanRank {
  Rank rank;
  uint64_t slot_bytes = 0;
  bool operator==(const PlanRank&) const = default;
};

/// A node of a parity group.
struct PlanMember {
  std::string node;
  std::string address;  // of its peer listener; empty: cannot be reached now
  /// The node's number in the job's plan, counted over all groups. The rank of its parity shard is
  /// ParityRank(number).
  uint32_t number = 0;
  std::vector<PlanRank> ranks;  // ascending
  /// Whether the node has, in memory or on disk, the shards of all its ranks (has_data) and its
  /// parity shard (has_parity) of the version to be decoded.
  bool has_data = false;
  bool has_parity = false;
  /// The member's name when the plan was made, if `node` has replaced it since; empty: `node`.
  std::string planned = {};
  bool operator==(const PlanMember&) const = default;
};

/// The members of a parity group and the placement of their bytes. A member's node image is the
/// concatenation of its ranks' slots; the unused rest of each slot is zeros. A value, constant for
/// an incarnation.
class GroupPlan {
 public:
  /// Makes a plan. InvalidArgument for an invalid node name, too many ranks, ranks that do not
  /// ascend, a slot size that is too large or not aligned, and anything that StripeLayout refuses.
  static Result<GroupPlan> Make(std::vector<PlanMember> members, uint32_t parity_count);
  /// Parses the output of ToJson(). DataLoss for anything else.
  static Result<GroupPlan> FromJson(std::string_view json);
  /// Returns compact JSON. With `as_of_now` the JSON has the current state (addresses, and which
  /// member has which shards), for a request to decode. Otherwise it is the description that a
  /// parity shard contains.
  std::string ToJson(bool as_of_now) const;

  const std::vector<PlanMember>& members() const { return members_; }
  const StripeLayout& layout() const { return layout_; }
  std::optional<uint32_t> PositionOf(std::string_view node) const;
  std::optional<uint32_t> PositionOf(Rank rank) const;
  std::optional<uint32_t> PositionOfNumber(uint32_t number) const;

  /// A contiguous part of one rank's image inside a range of its member's node image.
  struct Piece {
    Rank rank;
    uint64_t rank_offset = 0;   // in the rank's image
    uint64_t range_offset = 0;  // in the requested range
    uint64_t bytes = 0;
  };
  /// Splits the node-image bytes [begin, end) of a member by rank, in order.
  std::vector<Piece> Pieces(uint32_t position, uint64_t begin, uint64_t end) const;
  /// Returns the offset of `rank`'s slot in its member's node image.
  uint64_t RankBegin(uint32_t position, Rank rank) const;

  bool operator==(const GroupPlan&) const = default;

 private:
  GroupPlan(std::vector<PlanMember> members, StripeLayout layout)
      : members_(std::move(members)), layout_(std::move(layout)) {}

  std::vector<PlanMember> members_;
  StripeLayout layout_;
};

}  // namespace holdfast
