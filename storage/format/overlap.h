#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

// Boxes of global tensors: their intersections, and the positions of the common elements in dense
// row-major memory. Pure arithmetic; all boxes of one call have the same number of dimensions.

namespace holdfast {

/// The elements [offset, offset + shape) in each dimension. A box without dimensions is the one
/// element of a scalar.
struct Box {
  std::vector<uint64_t> offset;
  std::vector<uint64_t> shape;
  bool operator==(const Box&) const = default;
  bool empty() const;
};

/// Returns e.g. "[0:4, 2:8]" for messages.
std::string ToString(const Box& box);

/// Returns the elements in both boxes; nothing when there are none.
std::optional<Box> Intersect(const Box& a, const Box& b);

/// Appends disjoint boxes to `rest` that cover the elements of `from` outside `what`.
void Subtract(const Box& from, const Box& what, std::vector<Box>& rest);

/// A part of a wanted box, and the index of the piece that contains it.
struct BoxPart {
  size_t from = 0;
  Box box;
};
/// Assigns each element of `wanted` to the first of `pieces` that contains it. Elements in no piece
/// are appended to `missing`. The parts do not overlap.
std::vector<BoxPart> Cover(const Box& wanted, std::span<const Box> pieces,
                           std::vector<Box>& missing);

/// The elements of one box in two tensors that contain it, as runs that are contiguous and
/// ascending in both.
class BoxCopy {
 public:
  /// `source` and `target` are the boxes of the two tensors. `box` is not empty and inside both.
  /// The tensors have fewer than 2^63 bytes.
  BoxCopy(const Box& source, const Box& target, const Box& box, uint32_t element_bytes);

  struct Run {
    uint64_t source = 0;  // bytes from the start of each tensor
    uint64_t target = 0;
    uint64_t bytes = 0;
  };
  /// Returns the first run that ends after source byte `from`, without its bytes before `from`.
  /// Returns nothing after the last run. Costs one division per dimension, for any `from`.
  std::optional<Run> RunFrom(uint64_t from) const;

  uint64_t source_begin() const { return source_; }
  /// Returns the offset after the last byte of the last run.
  uint64_t source_end() const { return source_end_; }

 private:
  /// A dimension with several runs.
  struct Dimension {
    uint64_t count = 0;
    uint64_t source_stride = 0;  // bytes
    uint64_t target_stride = 0;
  };
  std::vector<Dimension> outer_;  // outermost first
  uint64_t source_ = 0;
  uint64_t target_ = 0;
  uint64_t source_end_ = 0;
  uint64_t run_bytes_ = 0;
};

}  // namespace holdfast
