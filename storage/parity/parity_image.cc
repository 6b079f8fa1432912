#include "storage/parity/parity_image.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <string_view>
#include <utility>

#include "storage/format/image.h"

namespace holdfast {
namespace {

constexpr uint64_t kLengthBytes = sizeof(uint32_t);
// A generous bound for a seal without its chunk table and its job's name.
constexpr uint64_t kSealHeadBytesMax = 512;

/// Returns the most bytes that the list of all seals of the group takes, including its final zero.
uint64_t SealsBound(const GroupPlan& plan, const std::string& job) {
  uint64_t bytes = kLengthBytes;
  for (const PlanMember& member : plan.members()) {
    for (const PlanRank& rank : member.ranks) {
      bytes += kLengthBytes + kSealHeadBytesMax + job.size() +
               ChunkCount(rank.slot_bytes) * sizeof(uint32_t);
    }
  }
  return bytes;
}

}  // namespace

uint32_t ParityImage::StripeOfRow(const StripeLayout& layout, uint32_t position, uint32_t parity) {
  return (position + layout.node_count() - parity) % layout.node_count();
}

Result<ParityImage> ParityImage::Make(const GroupPlan& plan, uint32_t position,
                                      const ShardIdentity& identity) {
  if (position >= plan.members().size()) {
    return Fail(InvalidArgumentError(fmt::format("the group has no member {}", position)));
  }
  const uint64_t parities = plan.layout().parity_count();
  const uint64_t segment_bytes = plan.layout().segment_bytes();
  ParityImage image;
  image.seals_bytes_ = SealsBound(plan, identity.job);
  image.group_ = plan.ToJson(/*as_of_now=*/false);
  const std::vector<uint64_t> rows = {parities, segment_bytes};
  const std::vector<uint64_t> seals = {image.seals_bytes_};
  HOLDFAST_ASSIGN_OR_RETURN(const ImageLayout layout,
                            ImageLayout::Plan({{"parity", DType::kU8, rows, rows, {0, 0}},
                                               {"seals", DType::kU8, seals, seals, {0}}}));
  const std::array<ExtraSize, 1> extras = {ExtraSize{"group", image.group_.size()}};
  HOLDFAST_ASSIGN_OR_RETURN(image.header_, layout.RenderHeader(identity, extras));
  if (image.header_.size() != kHeaderBytes) {
    return Fail(InternalError(fmt::format("the header of a parity image has {} bytes, not {}",
                                          image.header_.size(), kHeaderBytes)));
  }
  image.seals_begin_ = image.header_.size() + parities * segment_bytes;
  image.group_begin_ = image.seals_begin_ + image.seals_bytes_;
  return image;
}

Status ParityImage::Finish(std::span<std::byte> image, std::span<const ShardSeal> seals) const {
  if (image.size() < image_bytes()) {
    return InternalError(
        fmt::format("a parity image of {} bytes does not fit into a slot of {} bytes",
                    image_bytes(), image.size()));
  }
  return FinishRange(0, image.first(image_bytes()), seals);
}

Status ParityImage::FinishRange(uint64_t begin, std::span<std::byte> range,
                                std::span<const ShardSeal> seals) const {
  std::string list;
  for (const ShardSeal& seal : seals) {
    const std::string record = EncodeSeal(seal);
    const auto length = static_cast<uint32_t>(record.size());
    if (record.size() > std::numeric_limits<uint32_t>::max() ||
        seals_bytes_ - list.size() < 2 * kLengthBytes + record.size()) {
      return ResourceExhaustedError(fmt::format(
          "the seals of the group do not fit into the {} bytes planned for them", seals_bytes_));
    }
    list.append(reinterpret_cast<const char*>(&length), kLengthBytes);
    list += record;
  }
  list.resize(seals_bytes_, '\0');
  const auto put = [&](uint64_t at, std::string_view bytes) {
    const uint64_t from = std::max(at, begin);
    const uint64_t to = std::min(at + bytes.size(), begin + range.size());
    if (from < to)
      std::memcpy(range.data() + (from - begin), bytes.data() + (from - at), to - from);
  };
  put(0, header_);
  put(seals_begin_, list);
  put(group_begin_, group_);
  return Status::Ok();
}

Result<std::vector<ShardSeal>> ParseSeals(std::span<const std::byte> list) {
  std::vector<ShardSeal> seals;
  uint64_t at = 0;
  while (list.size() - at >= kLengthBytes) {
    uint32_t length = 0;
    std::memcpy(&length, list.data() + at, kLengthBytes);
    at += kLengthBytes;
    if (length == 0) break;
    if (length > list.size() - at) return Fail(DataLossError("a list of seals is truncated"));
    HOLDFAST_ASSIGN_OR_RETURN(ShardSeal seal, DecodeSeal(list.subspan(at, length)));
    seals.push_back(std::move(seal));
    at += length;
  }
  return seals;
}

}  // namespace holdfast
