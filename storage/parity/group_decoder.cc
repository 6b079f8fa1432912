#include "storage/parity/group_decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "storage/format/image.h"
#include "storage/parity/parity_image.h"

namespace holdfast {
namespace {
constexpr size_t kNamedMax = 8;
// Twice the size of the largest plan.
constexpr uint64_t kPlanBytesMax = 16ULL << 20;

/// Reads the plan from the extra state of a parity shard.
Result<GroupPlan> ReadPlan(ShardImages& images, Rank parity) {
  HOLDFAST_ASSIGN_OR_RETURN(const ShardSeal seal, images.Seal(parity));
  const std::string name = ToString(seal.identity.key());
  if (seal.image_bytes < ParityImage::kHeaderBytes) {
    return Fail(DataLossError(
        fmt::format("{} has {} bytes, too few for a parity shard", name, seal.image_bytes)));
  }
  std::vector<std::byte> header(ParityImage::kHeaderBytes);
  HOLDFAST_RETURN_IF_ERROR(images.Read(parity, 0, header));
  auto image = ParseImage(header, seal.image_bytes);
  if (!image) return Fail(image.error().WithContext(name));
  for (const auto& extra : image->extras) {
    if (extra.name != "group") continue;
    const uint64_t bytes = extra.end - extra.begin;
    if (bytes > kPlanBytesMax) break;
    std::vector<std::byte> text(bytes);
    HOLDFAST_RETURN_IF_ERROR(images.Read(parity, image->data_offset + extra.begin, text));
    return GroupPlan::FromJson(
        std::string_view(reinterpret_cast<const char*>(text.data()), text.size()));
  }
  return Fail(DataLossError(name + " does not describe its parity group"));
}
}  // namespace

Result<std::unique_ptr<GroupDecoder>> GroupDecoder::Open(ShardImages& images,
                                                         const std::string& job, VersionId version,
                                                         Rank parity) {
  // The parity shard is untrusted: each statement about its group is checked against the request.
  HOLDFAST_ASSIGN_OR_RETURN(GroupPlan plan, ReadPlan(images, parity));
  std::unique_ptr<GroupDecoder> decoder(new GroupDecoder(images, std::move(plan)));
  const StripeLayout& layout = decoder->plan_.layout();
  HOLDFAST_ASSIGN_OR_RETURN(decoder->code_,
                            ErasureCode::Make(layout.data_count(), layout.parity_count()));
  const auto position = decoder->plan_.PositionOfNumber(ParityNode(parity));
  if (!position) {
    return Fail(DataLossError(ShardName(parity) + " describes a group that does not contain it"));
  }
  HOLDFAST_ASSIGN_OR_RETURN(
      const ParityImage image,
      ParityImage::Make(decoder->plan_, *position, {job, version, parity, kWorldMax}));
  HOLDFAST_ASSIGN_OR_RETURN(const ShardSeal own, images.Seal(parity));
  if (own.image_bytes < image.seals_begin() + image.seals_bytes()) {
    return Fail(DataLossError(fmt::format("{} has {} bytes, its group requires at least {}",
                                          ShardName(parity), own.image_bytes,
                                          image.seals_begin() + image.seals_bytes())));
  }
  std::vector<std::byte> list(image.seals_bytes());
  HOLDFAST_RETURN_IF_ERROR(images.Read(parity, image.seals_begin(), list));
  HOLDFAST_ASSIGN_OR_RETURN(std::vector<ShardSeal> seals, ParseSeals(list));
  for (ShardSeal& seal : seals) {
    const ShardKey key = seal.identity.key();
    if (key.job != job || key.version != version || !decoder->plan_.PositionOf(key.rank)) {
      return Fail(DataLossError(ShardName(parity) + " contains the seal of " + ToString(key) +
                                ", which is not in its group"));
    }
    decoder->seals_.emplace(key.rank, std::move(seal));
  }
  for (const PlanMember& member : decoder->plan_.members()) {
    const auto check = [&](Rank shard) {
      auto seal = images.Seal(shard);
      const auto expected = decoder->seals_.find(shard);
      const bool same = seal && (IsParity(shard) || (expected != decoder->seals_.end() &&
                                                     seal->digest() == expected->second.digest()));
      if (!same) decoder->missing_.push_back(shard);
    };
    for (const PlanRank& rank : member.ranks) check(rank.rank);
    check(ParityRank(member.number));
  }
  decoder->units_.resize(layout.node_count());
  return decoder;
}

bool GroupDecoder::Has(Rank shard) const {
  return std::find(missing_.begin(), missing_.end(), shard) == missing_.end();
}

bool GroupDecoder::HasAllShards(uint32_t position) const {
  const std::vector<PlanRank>& ranks = plan_.members()[position].ranks;
  return std::all_of(ranks.begin(), ranks.end(),
                     [this](const PlanRank& rank) { return Has(rank.rank); });
}

Result<ShardSeal> GroupDecoder::Seal(Rank rank) const {
  auto found = seals_.find(rank);
  if (found != seals_.end()) return found->second;
  return Fail(NotFoundError("the group's parity has no seal of " + ShardName(rank)));
}

std::string GroupDecoder::MissingText() const {
  std::string text;
  for (size_t i = 0; i < missing_.size(); ++i) {
    if (i == kNamedMax) return text + fmt::format(" and {} more", missing_.size() - i);
    text += (i == 0 ? "" : ", ") + ShardName(missing_[i]);
  }
  return text;
}

Status GroupDecoder::CheckDecodable(Rank rank) const {
  const auto position = plan_.PositionOf(rank);
  if (!position) return NotFoundError("the group does not contain " + ShardName(rank));
  if (auto seal = Seal(rank); !seal) return seal.error();
  const StripeLayout& layout = plan_.layout();
  std::vector<NodeShards> nodes;
  for (uint32_t at = 0; at < layout.node_count(); ++at) {
    nodes.push_back({HasAllShards(at), Has(ParityRank(plan_.members()[at].number))});
  }
  if (layout.IsDecodable(nodes)) return Status::Ok();
  return DataLossError(fmt::format(
      "{} cannot be decoded: its parity group of {} nodes survives the loss of {}, but {} are "
      "missing",
      ShardName(rank), layout.node_count(), layout.parity_count(), MissingText()));
}

Status GroupDecoder::Decode(Rank rank, uint64_t offset, std::span<std::byte> into) {
  const auto position = plan_.PositionOf(rank);
  if (!position) return NotFoundError("the group does not contain " + ShardName(rank));
  const StripeLayout& layout = plan_.layout();
  for (const PlanRank& own : plan_.members()[*position].ranks) {
    const bool beyond = offset > own.slot_bytes || into.size() > own.slot_bytes - offset;
    if (own.rank == rank && beyond) {
      return InvalidArgumentError(fmt::format("{} has no bytes [{}, {}): its slot has {} bytes",
                                              ShardName(rank), offset, offset + into.size(),
                                              own.slot_bytes));
    }
  }
  const uint64_t begin = plan_.RankBegin(*position, rank) + offset;
  for (uint64_t done = 0; done < into.size();) {
    const uint64_t in_node = begin + done;
    const auto segment = static_cast<uint32_t>(in_node / layout.segment_bytes());
    const uint64_t at = in_node % layout.segment_bytes();
    const uint64_t bytes =
        std::min({layout.segment_bytes() - at, into.size() - done, kStripeUnitBytes});
    const uint32_t stripe = layout.StripeOf(*position, segment);
    const uint32_t wanted = layout.IndexOf(stripe, *position);
    Outcome outcome = Make(stripe, wanted, at, into.subspan(done, bytes));
    // A corrupt chunk may cover only a part of the unit. Smaller pieces lose fewer segments.
    if (!outcome.status.ok() && outcome.bad_bytes) {
      outcome = {};
      for (uint64_t made = 0; made < bytes && outcome.status.ok();) {
        const uint64_t piece = PieceInOneChunk(plan_, stripe, at + made, bytes - made);
        outcome = Make(stripe, wanted, at + made, into.subspan(done + made, piece));
        made += piece;
      }
    }
    HOLDFAST_RETURN_IF_ERROR(outcome.status);
    done += bytes;
  }
  return Status::Ok();
}

GroupDecoder::Outcome GroupDecoder::Make(uint32_t stripe, uint32_t wanted, uint64_t at,
                                         std::span<std::byte> into) {
  const StripeLayout& layout = plan_.layout();
  std::vector<PresentSegment> present;
  Outcome outcome;
  for (uint32_t index = 0; index < layout.node_count(); ++index) {
    if (index == wanted) continue;
    if (present.size() == layout.data_count()) break;
    std::vector<std::byte>& unit = units_[index];
    unit.resize(kStripeUnitBytes);
    const auto bytes = std::span(unit).first(into.size());
    auto any = Fill(stripe, index, at, bytes);
    if (any) {
      present.push_back({index, *any ? bytes : std::span<std::byte>()});
      continue;
    }
    const bool bad = any.error().code() == ErrorCode::kDataLoss;
    outcome.bad_bytes = outcome.bad_bytes || bad;
    // Report damage rather than shards that were known to be missing.
    if (any.error().code() != ErrorCode::kNotFound) outcome.status = any.error();
  }
  if (present.size() < layout.data_count()) {
    if (outcome.status.ok()) outcome.status = DataLossError(MissingText() + " are missing");
    return outcome;
  }
  const WantedSegment made{wanted, into};
  return {code_->Decode(present, {&made, 1}), false};
}

Result<bool> GroupDecoder::Fill(uint32_t stripe, uint32_t index, uint64_t at,
                                std::span<std::byte> into) {
  const StripeLayout& layout = plan_.layout();
  const uint32_t position = layout.NodeOf(stripe, index);
  if (index >= layout.data_count()) {
    const Rank parity = ParityRank(plan_.members()[position].number);
    if (!Has(parity)) return Fail(NotFoundError(ShardName(parity) + " is missing"));
    const uint64_t row = ParityImage::RowBegin(layout, index - layout.data_count());
    HOLDFAST_RETURN_IF_ERROR(images_.Read(parity, row + at, into));
    return true;
  }
  const StripeMember segment = layout.DataMember(stripe, index);
  const uint64_t begin = std::min(segment.begin + at, segment.end);
  const uint64_t end = std::min(begin + into.size(), segment.end);
  bool any = false;
  for (const GroupPlan::Piece& piece : plan_.Pieces(segment.node, begin, end)) {
    auto seal = seals_.find(piece.rank);
    const uint64_t image_bytes = seal == seals_.end() ? 0 : seal->second.image_bytes;
    if (seal != seals_.end() && piece.rank_offset >= image_bytes) continue;  // zeros
    if (seal == seals_.end() || !Has(piece.rank)) {
      return Fail(NotFoundError(ShardName(piece.rank) + " is missing"));
    }
    if (!any) std::fill(into.begin(), into.end(), std::byte{0});
    any = true;
    const uint64_t bytes = std::min(piece.bytes, image_bytes - piece.rank_offset);
    HOLDFAST_RETURN_IF_ERROR(
        images_.Read(piece.rank, piece.rank_offset, into.subspan(piece.range_offset, bytes)));
  }
  return any;
}

uint64_t PieceInOneChunk(const GroupPlan& plan, uint32_t stripe, uint64_t at, uint64_t bytes) {
  const StripeLayout& layout = plan.layout();
  uint64_t least = bytes;
  const auto consider = [&](uint64_t image_at, uint64_t before) {
    least = std::min(least, before + kChunkBytes - image_at % kChunkBytes);
  };
  for (uint32_t index = 0; index < layout.node_count(); ++index) {
    if (index >= layout.data_count()) {
      consider(ParityImage::RowBegin(layout, index - layout.data_count()) + at, 0);
      continue;
    }
    const StripeMember segment = layout.DataMember(stripe, index);
    const uint64_t begin = std::min(segment.begin + at, segment.end);
    const uint64_t end = std::min(begin + bytes, segment.end);
    for (const GroupPlan::Piece& piece : plan.Pieces(segment.node, begin, end)) {
      if (piece.range_offset > 0) least = std::min(least, piece.range_offset);
      consider(piece.rank_offset, piece.range_offset);
    }
  }
  return least;
}

}  // namespace holdfast
