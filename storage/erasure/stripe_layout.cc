#include "storage/erasure/stripe_layout.h"

#include <fmt/format.h>

#include <algorithm>

#include "storage/erasure/coding_tables.h"

namespace holdfast {
namespace {

// Far more than any node's memory. Sums of 32 images cannot overflow.
constexpr uint64_t kImageBytesMax = 1ULL << 56;

}  // namespace

Result<StripeLayout> StripeLayout::Make(uint32_t parity_count,
                                        std::span<const uint64_t> image_bytes) {
  const size_t nodes = image_bytes.size();
  if (nodes < 2 || nodes > kCodeSegmentsMax) {
    return Fail(InvalidArgumentError(
        fmt::format("a parity group has 2 to {} nodes, not {}", kCodeSegmentsMax, nodes)));
  }
  if (parity_count == 0 || parity_count > kCodeParityMax || parity_count >= nodes) {
    return Fail(InvalidArgumentError(fmt::format(
        "{} nodes cannot have {} parity segments per stripe: use 1 to {}, and fewer than nodes",
        nodes, parity_count, kCodeParityMax)));
  }
  const uint64_t longest = *std::max_element(image_bytes.begin(), image_bytes.end());
  if (longest >= kImageBytesMax) {
    return Fail(InvalidArgumentError(fmt::format(
        "an image of {} bytes is too long: at most {} are allowed", longest, kImageBytesMax - 1)));
  }
  StripeLayout layout;
  layout.parity_count_ = parity_count;
  layout.image_bytes_.assign(image_bytes.begin(), image_bytes.end());
  const uint64_t granularity = layout.data_count() * kSegmentAlign;
  layout.segment_bytes_ = (longest + granularity - 1) / granularity * kSegmentAlign;
  return layout;
}

std::vector<uint32_t> StripeLayout::ParityNodes(uint32_t stripe) const {
  std::vector<uint32_t> nodes;
  for (uint32_t i = 0; i < parity_count_; ++i) nodes.push_back(NodeOf(stripe, data_count() + i));
  return nodes;
}

std::vector<StripeMember> StripeLayout::DataMembers(uint32_t stripe) const {
  std::vector<StripeMember> members;
  for (uint32_t i = 0; i < data_count(); ++i) members.push_back(DataMember(stripe, i));
  return members;
}

StripeMember StripeLayout::DataMember(uint32_t stripe, uint32_t index) const {
  StripeMember member;
  member.node = NodeOf(stripe, index);
  member.index = index;
  member.segment = data_count() - 1 - index;
  const uint64_t real = image_bytes_[member.node];
  member.begin = std::min(real, member.segment * segment_bytes_);
  member.end = std::min(real, (member.segment + 1) * segment_bytes_);
  return member;
}

uint32_t StripeLayout::NodeOf(uint32_t stripe, uint32_t index) const {
  // The order along the ring, from the leader on: m parities, then k data segments.
  const uint32_t from_leader = index < data_count() ? parity_count_ + index : index - data_count();
  return (stripe + from_leader) % node_count();
}

uint32_t StripeLayout::IndexOf(uint32_t stripe, uint32_t node) const {
  const uint32_t from_leader = DistanceFromLeader(node_count(), stripe, node);
  return from_leader < parity_count_ ? data_count() + from_leader : from_leader - parity_count_;
}

uint32_t StripeLayout::StripeOf(uint32_t node, uint32_t segment) const {
  return (node + 1 + segment) % node_count();
}

uint64_t StripeLayout::ParityBytes(uint32_t stripe) const {
  uint64_t longest = 0;
  for (uint32_t i = 0; i < data_count(); ++i) {
    longest = std::max(longest, DataMember(stripe, i).bytes());
  }
  return longest;
}

uint64_t StripeLayout::PieceEnd(uint32_t stripe, uint64_t offset) const {
  uint64_t end = (offset / kStripeUnitBytes + 1) * kStripeUnitBytes;
  for (uint32_t i = 0; i < data_count(); ++i) {
    const uint64_t bytes = DataMember(stripe, i).bytes();
    if (bytes > offset) end = std::min(end, bytes);
  }
  return end;
}

uint64_t StripeLayout::SentBytes(uint32_t node) const {
  const uint32_t led = node;  // LeaderOf(node) == node
  return image_bytes_[node] + (parity_count_ - 1) * ParityBytes(led);
}

uint64_t StripeLayout::HeldParityBytes(uint32_t node) const {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < parity_count_; ++i) {
    bytes += ParityBytes((node + node_count() - i) % node_count());
  }
  return bytes;
}

}  // namespace holdfast
