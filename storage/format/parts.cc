#include "storage/format/parts.h"

#include <fmt/format.h>

#include <algorithm>

#include "storage/format/header_text.h"
#include "storage/format/seal.h"

namespace holdfast {

namespace {

/// Returns the first dimension that is not 1: a cut along it splits a row-major tensor into
/// row-major boxes. Returns the number of dimensions when there is none.
size_t CutDimension(std::span<const uint64_t> shape) {
  size_t d = 0;
  while (d < shape.size() && shape[d] == 1) ++d;
  return d;
}

/// Returns the bytes of one row along the cut dimension, or of the complete tensor when it cannot
/// be cut.
uint64_t RowBytes(const PlacedTensor& tensor) {
  const std::vector<uint64_t>& shape = tensor.spec.shape;
  size_t d = CutDimension(shape);
  return tensor.bytes() == 0 || d == shape.size() ? tensor.bytes() : tensor.bytes() / shape[d];
}

/// Returns the offset in the data region nearest to `target` at which a cut splits no row.
uint64_t NearestCut(const ParsedImage& image, uint64_t target) {
  auto choose = [&](uint64_t begin, uint64_t end, uint64_t row) {
    uint64_t below = begin + (target - begin) / row * row;
    uint64_t above = std::min(end, below + row);
    return target - below <= above - target ? below : above;
  };
  auto tensor = std::partition_point(image.tensors.begin(), image.tensors.end(),
                                     [&](const PlacedTensor& t) { return t.end <= target; });
  if (tensor != image.tensors.end()) {
    return choose(tensor->begin, tensor->end, RowBytes(*tensor));
  }
  auto extra = std::partition_point(image.extras.begin(), image.extras.end(),
                                    [&](const PlacedExtra& e) { return e.end <= target; });
  if (extra != image.extras.end()) return choose(extra->begin, extra->end, extra->bytes());
  return target;
}

/// Returns the ascending bounds of the parts in the data region, including both ends.
std::vector<uint64_t> ChooseCuts(const ParsedImage& image, uint32_t count) {
  const uint64_t data_bytes = image.image_bytes - image.data_offset;
  std::vector<uint64_t> cuts = {0};
  for (uint32_t i = 1; i < count; ++i) {
    uint64_t cut = NearestCut(image, data_bytes / count * i + data_bytes % count * i / count);
    if (cut > cuts.back() && cut < data_bytes) cuts.push_back(cut);
  }
  cuts.push_back(data_bytes);
  return cuts;
}

/// Returns the rows of `tensor` in [begin, end) of the data region, as a slice of the same global
/// tensor.
TensorSpec Piece(const PlacedTensor& tensor, uint64_t begin, uint64_t end) {
  TensorSpec piece = tensor.spec;
  const uint64_t row = RowBytes(tensor);
  const size_t d = CutDimension(piece.shape);
  piece.offset[d] += (begin - tensor.begin) / row;
  piece.shape[d] = (end - begin) / row;
  return piece;
}

/// The entries of the tensors and extras in one part. An entry without bytes belongs to the part
/// that continues after its offset, or to the last part.
class PartEntries {
 public:
  PartEntries(uint64_t begin, uint64_t end, bool last, uint32_t format)
      : begin_(begin), end_(end), last_(last), format_(format), slices_(format) {}

  void Add(const PlacedTensor& tensor) {
    if (!Holds(tensor.begin, tensor.end)) return;
    const uint64_t begin = std::max(begin_, tensor.begin);
    const uint64_t end = std::min(end_, tensor.end);
    const bool whole = begin == tensor.begin && end == tensor.end;
    const TensorSpec cut = whole ? TensorSpec{} : Piece(tensor, begin, end);
    const TensorSpec& spec = whole ? tensor.spec : cut;
    AppendTensorEntry(spec.name, spec.dtype, spec.shape, begin - begin_, end - begin_, &tensors_);
    slices_.Add(spec);
  }

  void Add(const PlacedExtra& extra) {
    if (!Holds(extra.begin, extra.end)) return;
    const uint64_t bytes = extra.bytes();
    AppendTensorEntry(std::string(kExtraPrefix) + extra.name, DType::kU8, std::span(&bytes, 1),
                      extra.begin - begin_, extra.end - begin_, &extras_);
  }

  Result<std::string> Render(const ShardIdentity& identity, uint32_t part, uint32_t parts,
                             uint64_t residue) const {
    return AssembleHeader(identity,
                          {.format = format_,
                           .tensors = tensors_,
                           .extras = extras_,
                           .slices = slices_.Escaped(),
                           .part = part,
                           .parts = parts},
                          residue);
  }

 private:
  bool Holds(uint64_t begin, uint64_t end) const {
    if (begin == end) return begin_ <= begin && (begin < end_ || last_);
    return begin < end_ && end > begin_;
  }

  uint64_t begin_;
  uint64_t end_;
  bool last_;
  uint32_t format_;
  std::string tensors_;
  std::string extras_;
  SlicesText slices_;
};

}  // namespace

Result<std::vector<PartPlan>> PlanParts(const ParsedImage& image, uint32_t count) {
  if (count == 0 || count > kPartsMax) {
    return Fail(InvalidArgumentError(
        fmt::format("a shard can be cut into 1 to {} parts, not {}", kPartsMax, count)));
  }
  if (count > 1 && image.format == 0) {
    return Fail(InvalidArgumentError(
        "only an image made by Holdfast can be cut into parts; this one does not name its job"));
  }
  std::vector<uint64_t> cuts = ChooseCuts(image, count);
  const auto parts = static_cast<uint32_t>(cuts.size() - 1);
  if (parts <= 1) return std::vector<PartPlan>{{.header = {}, .image_end = image.image_bytes}};

  std::vector<PartPlan> plans;
  for (uint32_t i = 0; i < parts; ++i) {
    PartEntries entries(cuts[i], cuts[i + 1], i + 1 == parts, image.format);
    for (const PlacedTensor& tensor : image.tensors) entries.Add(tensor);
    for (const PlacedExtra& extra : image.extras) entries.Add(extra);
    PartPlan plan;
    plan.image_begin = image.data_offset + cuts[i];
    plan.image_end = image.data_offset + cuts[i + 1];
    HOLDFAST_ASSIGN_OR_RETURN(
        plan.header, entries.Render(image.identity, i, parts, plan.image_begin % kImageAlign));
    plans.push_back(std::move(plan));
  }
  return plans;
}

}  // namespace holdfast
