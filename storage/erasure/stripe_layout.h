#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "storage/erasure/survivability.h"

namespace holdfast {

/// Segments are sent and encoded in units of this many bytes; the last may be shorter.
inline constexpr uint64_t kStripeUnitBytes = 1ULL << 20;
/// Segments begin at multiples of this in their node's image, as direct I/O requires.
inline constexpr uint64_t kSegmentAlign = 4096;

/// A data segment of a stripe: its node and its bytes in that node's image.
struct StripeMember {
  uint32_t node = 0;
  uint32_t index = 0;    // in the code, below data_count()
  uint32_t segment = 0;  // which of the image's data_count() segments
  uint64_t begin = 0;    // image bytes [begin, end), clipped to the image's real length:
  uint64_t end = 0;      // the rest of the segment is zeros, neither stored nor sent

  uint64_t bytes() const { return end - begin; }
  friend bool operator==(const StripeMember&, const StripeMember&) = default;
};

/// Maps each byte and each parity of a group to a node and a stripe. The n nodes form a ring,
/// numbered 0 … n − 1. Each stripe has m parity and k = n − m data segments.
/// docs/formats/stripe.md has the full description. An example:
///
///   n = 4, m = 1      node 0   node 1   node 2   node 3      A2: segment 2 of node 0's image
///   stripe 0          P        B2       C1       D0          P:  parity of the row
///   stripe 1          A0       P        C2       D1
///   stripe 2          A1       B0       P        D2
///   stripe 3          A2       B1       C0       P
///
/// No stripe has two segments of one node. Losing m nodes therefore costs each stripe at most m
/// segments, and these can be decoded. An immutable value, which may be copied. Stripes, nodes and
/// segments passed in must be in range.
class StripeLayout {
 public:
  /// Makes the layout for nodes with images of `image_bytes` bytes each, in ring order. Images may
  /// differ in length; shorter ones count as padded with zeros to the longest. Returns
  /// InvalidArgument unless 2 ≤ n ≤ kCodeSegmentsMax, 1 ≤ m = `parity_count` ≤ min(kCodeParityMax,
  /// n − 1) and every image is below 2^56 bytes.
  static Result<StripeLayout> Make(uint32_t parity_count, std::span<const uint64_t> image_bytes);

  uint32_t node_count() const { return static_cast<uint32_t>(image_bytes_.size()); }
  uint32_t parity_count() const { return parity_count_; }
  uint32_t data_count() const { return node_count() - parity_count_; }
  uint64_t image_bytes(uint32_t node) const { return image_bytes_[node]; }
  /// Returns the full length of a segment: the longest image ÷ k, rounded up to kSegmentAlign.
  uint64_t segment_bytes() const { return segment_bytes_; }

  /// Returns the node that receives the stripe's data, encodes it, keeps the first parity and
  /// forwards the others.
  uint32_t LeaderOf(uint32_t stripe) const { return stripe; }
  /// Returns the nodes that hold the stripe's parities, in the code's order: the leader and the
  /// m − 1 nodes after it.
  std::vector<uint32_t> ParityNodes(uint32_t stripe) const;
  /// Returns the stripe's data segments in the code's order: along the ring from the first node
  /// after the parity nodes.
  std::vector<StripeMember> DataMembers(uint32_t stripe) const;
  StripeMember DataMember(uint32_t stripe, uint32_t index) const;

  /// NodeOf returns the node that holds segment `index` of the code in a stripe (data below k, then
  /// parity); IndexOf is its inverse.
  uint32_t NodeOf(uint32_t stripe, uint32_t index) const;
  uint32_t IndexOf(uint32_t stripe, uint32_t node) const;
  /// Returns the stripe that contains segment `segment` of a node's image. The segment's index in
  /// that stripe is k − 1 − `segment`.
  uint32_t StripeOf(uint32_t node, uint32_t segment) const;

  /// Returns the real length of each of the stripe's parities: that of its longest data segment.
  /// Bytes beyond this length are the parity of zeros, and therefore zeros.
  uint64_t ParityBytes(uint32_t stripe) const;
  /// Returns the end of the piece that begins at `offset` of the stripe's segments. `offset` must
  /// be below ParityBytes(stripe). No piece crosses a unit's end. In a piece each data segment has
  /// either all bytes or none, as ErasureCode requires.
  uint64_t PieceEnd(uint32_t stripe, uint64_t offset) const;

  /// Returns the bytes that a node sends for one version: its image to the leaders and, as a
  /// leader, all parities except the one that it keeps. This is S(n − 1)/(n − m) for images of S
  /// bytes that fill their segments.
  uint64_t SentBytes(uint32_t node) const;
  /// Returns the bytes of parity that a node holds: m·S/(n − m) for such images.
  uint64_t HeldParityBytes(uint32_t node) const;

  /// Whether every image and every parity can be decoded from what the nodes have. `nodes` is in
  /// ring order.
  bool IsDecodable(std::span<const NodeShards> nodes) const {
    return holdfast::IsDecodable(parity_count_, nodes);
  }

  friend bool operator==(const StripeLayout&, const StripeLayout&) = default;

 private:
  StripeLayout() = default;

  uint32_t parity_count_ = 0;
  uint64_t segment_bytes_ = 0;
  std::vector<uint64_t> image_bytes_;
};

}  // namespace holdfast
