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

/// A parity shard's image: a safetensors file like every other, with the tensors
///   parity  U8 [m, segment_bytes]  row p: parity p of the stripe that this member holds it of
///   seals   U8 [n]                 the group's seals, so that any survivor knows a lost shard's
///                                  chunk checksums
/// and the plan as extra state `group`. Size and places follow from the plan and the job's name, so
/// that a member can find its way in another's image. docs/formats/parity.md describes it.
class ParityImage {
 public:
  /// The image of the member at `position`. `identity.rank` is ParityRank(number).
  static Result<ParityImage> Make(const GroupPlan& plan, uint32_t position,
                                  const ShardIdentity& identity);

  /// Bytes before the rows in every parity image: its header is short, whatever the names and
  /// numbers.
  static constexpr uint64_t kHeaderBytes = 4096;

  uint64_t image_bytes() const { return group_begin_ + group_.size(); }
  /// The stripe that row `parity` of the member at `position` belongs to.
  static uint32_t StripeOfRow(const StripeLayout& layout, uint32_t position, uint32_t parity);
  /// Image offset of a row; rows are segment_bytes() long.
  static uint64_t RowBegin(const StripeLayout& layout, uint32_t parity) {
    return kHeaderBytes + parity * layout.segment_bytes();
  }
  uint64_t seals_begin() const { return seals_begin_; }
  uint64_t seals_bytes() const { return seals_bytes_; }

  /// Writes header, seals and plan around the rows, which are already there. ResourceExhausted when
  /// the seals take more room than the plan foresaw.
  Status Finish(std::span<std::byte> image, std::span<const ShardSeal> seals) const;
  /// The same for the image bytes from `begin` on alone.
  Status FinishRange(uint64_t begin, std::span<std::byte> range,
                     std::span<const ShardSeal> seals) const;

 private:
  std::string header_;
  std::string group_;
  uint64_t seals_begin_ = 0;
  uint64_t seals_bytes_ = 0;
  uint64_t group_begin_ = 0;
};

/// The seals in a `seals` tensor. DataLoss for bytes that are no such list.
Result<std::vector<ShardSeal>> ParseSeals(std::span<const std::byte> list);

}  // namespace holdfast
