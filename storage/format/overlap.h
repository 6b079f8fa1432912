#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

// Boxes of global tensors: which of them share elements, and where those lie in memory that is
// dense and row-major. Pure arithmetic; all boxes of one call have as many dimensions.

namespace holdfast {

/// Elements [offset, offset + shape) in each dimension. Without dimensions: the one element of a
/// scalar.
struct Box {
  std::vector<uint64_t> offset;
  std::vector<uint64_t> shape;
  bool operator==(const Box&) const = default;
  bool empty() const;
};

/// "[0:4, 2:8]" for messages.
std::string ToString(const Box& box);

/// What both have; nothing when that is no element.
std::optional<Box> Intersect(const Box& a, const Box& b);

/// Appends boxes to `rest` that have each element of `from` that is not in `what` once.
void Subtract(const Box& from, const Box& what, std::vector<Box>& rest);

/// A part of a wanted box, and which of several has it.
struct BoxPart {
  size_t from = 0;
  Box box;
};
/// Takes each element of `wanted` from the first of `pieces` that has it; what none has is appended
/// to `missing`. The parts do not overlap.
std::vector<BoxPart> Cover(const Box& wanted, std::span<const Box> pieces,
                           std::vector<Box>& missing);

/// The elements of one box, as they lie in two tensors that hold it: in runs that are contiguous in
/// both, ascending in both.
class BoxCopy {
 public:
  /// `box` has elements and is inside `source` and `target`, the boxes that the tensors are; the
  /// tensors have fewer than 2^63 bytes.
  BoxCopy(const Box& source, const Box& target, const Box& box, uint32_t element_bytes);

  struct Run {
    uint64_t source = 0;  // bytes from the start of each tensor
    uint64_t target = 0;
    uint64_t bytes = 0;
  };
  /// What is left of the first run that ends behind source byte `from`; nothing behind the last
  /// run. Costs a division a dimension, wherever `from` is.
  std::optional<Run> RunFrom(uint64_t from) const;

  uint64_t source_begin() const { return source_; }
  /// Behind the last byte of the last run.
  uint64_t source_end() const { return source_end_; }

 private:
  /// A dimension that the runs are counted along.
  struct Dimension {
    uint64_t count = 0;
    uint64_t source_stride = 0;  // bytes
    uint64_t target_stride = 0;
  };
  std::vector<Dimension> outer_;  // the outermost first
  uint64_t source_ = 0;
  uint64_t target_ = 0;
  uint64_t source_end_ = 0;
  uint64_t run_bytes_ = 0;
};

}  // namespace holdfast
