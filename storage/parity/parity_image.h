#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "storage/format/seal.h"
#include "storage/parity/group_plan.h"

namespace holdfast {

/// A parity shard's image: a safetensors file, like every image, with the tensors
///   parity  U8 [m, segment_bytes]  row p: parity p of one stripe; see StripeOfRow()
///   seals   U8 [seals_bytes]       the group's seals, so that any survivor has the chunk checksums
///                                  of a lost shard
/// and the plan as extra state `group`. The size and all offsets follow from the plan and the job's
/// name, so that each member can compute offsets in any other member's image.
/// docs/formats/parity.md describes the format.
class ParityImage {
 public:
  /// Plans the image of the member at `position`. `identity.rank` is ParityRank() of the member's
  /// number.
  static Result<ParityImage> Make(const GroupPlan& plan, uint32_t position,
                                  const ShardIdentity& identity);

  /// The length of the header before the rows, in every parity image. The longest names and numbers
  /// fit.
  static constexpr uint64_t kHeaderBytes = 4096;

  uint64_t image_bytes() const { return group_begin_ + group_.size(); }
  /// Returns the stripe that row `parity` of the member at `position` belongs to.
  static uint32_t StripeOfRow(const StripeLayout& layout, uint32_t position, uint32_t parity);
  /// Returns the image offset of a row; rows are segment_bytes() long.
  static uint64_t RowBegin(const StripeLayout& layout, uint32_t parity) {
    return kHeaderBytes + parity * layout.segment_bytes();
  }
  uint64_t seals_begin() const { return seals_begin_; }
  uint64_t seals_bytes() const { return seals_bytes_; }

  /// Writes header, seals and plan around the rows, which the image already contains.
  /// ResourceExhausted when the seals do not fit into the space that the plan reserved.
  Status Finish(std::span<std::byte> image, std::span<const ShardSeal> seals) const;
  /// Like Finish, but only for `range`, the image bytes from `begin` on.
  Status FinishRange(uint64_t begin, std::span<std::byte> range,
                     std::span<const ShardSeal> seals) const;

 private:
  std::string header_;
  std::string group_;
  uint64_t seals_begin_ = 0;
  uint64_t seals_bytes_ = 0;
  uint64_t group_begin_ = 0;
};

/// Parses a `seals` tensor. DataLoss for bytes that are not a list of seals.
Result<std::vector<ShardSeal>> ParseSeals(std::span<const std::byte> list);

}  // namespace holdfast
