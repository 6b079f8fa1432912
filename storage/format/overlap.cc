#include "storage/format/overlap.h"

#include <algorithm>

namespace holdfast {
namespace {
uint64_t EndOf(const Box& box, size_t dimension) {
  return box.offset[dimension] + box.shape[dimension];
}
}  // namespace

bool Box::empty() const {
  return std::any_of(shape.begin(), shape.end(), [](uint64_t n) { return n == 0; });
}

std::string ToString(const Box& box) {
  std::string text = "[";
  for (size_t d = 0; d < box.shape.size(); ++d) {
    text +=
        (d == 0 ? "" : ", ") + std::to_string(box.offset[d]) + ":" + std::to_string(EndOf(box, d));
  }
  return text + "]";
}

std::optional<Box> Intersect(const Box& a, const Box& b) {
  Box both;
  both.offset.reserve(a.shape.size());
  both.shape.reserve(a.shape.size());
  for (size_t d = 0; d < a.shape.size(); ++d) {
    const uint64_t begin = std::max(a.offset[d], b.offset[d]);
    const uint64_t end = std::min(EndOf(a, d), EndOf(b, d));
    if (begin >= end) return std::nullopt;
    both.offset.push_back(begin);
    both.shape.push_back(end - begin);
  }
  return both;
}

void Subtract(const Box& from, const Box& what, std::vector<Box>& rest) {
  if (from.empty()) return;
  const std::optional<Box> both = Intersect(from, what);
  if (!both) {
    rest.push_back(from);
    return;
  }
  // In each dimension, cut off the parts before and after `both`; continue with the rest.
  Box left = from;
  for (size_t d = 0; d < from.shape.size(); ++d) {
    const auto cut = [&](uint64_t begin, uint64_t end) {
      if (begin >= end) return;
      Box& piece = rest.emplace_back(left);
      piece.offset[d] = begin;
      piece.shape[d] = end - begin;
    };
    cut(left.offset[d], both->offset[d]);
    cut(EndOf(*both, d), EndOf(left, d));
    left.offset[d] = both->offset[d];
    left.shape[d] = both->shape[d];
  }
}

std::vector<BoxPart> Cover(const Box& wanted, std::span<const Box> pieces,
                           std::vector<Box>& missing) {
  std::vector<BoxPart> parts;
  std::vector<Box> open;
  if (!wanted.empty()) open.push_back(wanted);
  for (size_t i = 0; i < pieces.size() && !open.empty(); ++i) {
    std::vector<Box> rest;
    for (const Box& box : open) {
      if (std::optional<Box> both = Intersect(box, pieces[i])) {
        parts.push_back({i, *std::move(both)});
      }
      Subtract(box, pieces[i], rest);
    }
    open = std::move(rest);
  }
  missing.insert(missing.end(), open.begin(), open.end());
  return parts;
}

BoxCopy::BoxCopy(const Box& source, const Box& target, const Box& box, uint32_t element_bytes)
    : run_bytes_(element_bytes) {
  uint64_t source_stride = element_bytes;
  uint64_t target_stride = element_bytes;
  bool contiguous = true;  // the dimensions so far form one run
  for (size_t d = box.shape.size(); d-- > 0;) {
    source_ += (box.offset[d] - source.offset[d]) * source_stride;
    target_ += (box.offset[d] - target.offset[d]) * target_stride;
    if (contiguous) {
      run_bytes_ *= box.shape[d];
    } else {
      outer_.push_back({box.shape[d], source_stride, target_stride});
    }
    contiguous = contiguous && box.shape[d] == source.shape[d] && box.shape[d] == target.shape[d];
    source_stride *= source.shape[d];
    target_stride *= target.shape[d];
  }
  std::reverse(outer_.begin(), outer_.end());
  source_end_ = source_ + run_bytes_;
  for (const Dimension& dimension : outer_) {
    source_end_ += (dimension.count - 1) * dimension.source_stride;
  }
}

std::optional<BoxCopy::Run> BoxCopy::RunFrom(uint64_t from) const {
  if (from >= source_end_) return std::nullopt;
  // Find the last run that begins at or before `from`, dimension by dimension. If `from` is beyond
  // the last index of a dimension, all inner dimensions are clamped to their last index, too.
  uint64_t left = from > source_ ? from - source_ : 0;
  Run run{source_, target_, run_bytes_};
  const Dimension* next = nullptr;  // the innermost dimension with a further index
  uint64_t next_source = 0;
  uint64_t next_target = 0;
  for (const Dimension& dimension : outer_) {
    const uint64_t index = std::min(left / dimension.source_stride, dimension.count - 1);
    if (index + 1 < dimension.count) {
      next = &dimension;
      next_source = run.source + (index + 1) * dimension.source_stride;
      next_target = run.target + (index + 1) * dimension.target_stride;
    }
    left -= index * dimension.source_stride;
    run.source += index * dimension.source_stride;
    run.target += index * dimension.target_stride;
  }
  if (left >= run_bytes_) {
    if (next == nullptr) return std::nullopt;
    return Run{next_source, next_target, run_bytes_};
  }
  run.source += left;
  run.target += left;
  run.bytes -= left;
  return run;
}

}  // namespace holdfast
