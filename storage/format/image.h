#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "storage/base/ids.h"
#include "storage/format/dtype.h"

// The image of a shard: a valid safetensors file whose data begins at a multiple of 4096. The same
// bytes lie in a slot, on the wire and in a file. docs/formats/image.md is the full description.

namespace holdfast {

inline constexpr uint64_t kImageAlign = 4096;
/// safetensors' own limit on the JSON header.
inline constexpr uint64_t kHeaderBytesMax = 100'000'000;
/// Caps on what one shard may hold; checked when describing and when parsing.
inline constexpr uint64_t kTensorsMax = 1'000'000;
inline constexpr uint64_t kTensorNameMax = 4096;
inline constexpr uint64_t kDimensionsMax = 32;
/// Images carry this as `holdfast.format`; a higher number is refused, never deleted.
inline constexpr uint32_t kImageFormat = 1;

/// One tensor a rank saves: a dense row-major box of `shape` at `offset` in a global tensor of
/// `global_shape`. An unsharded tensor has global_shape == shape and zero offsets.
struct TensorSpec {
  /// UTF-8, unique in the shard, not "__metadata__", not starting "holdfast.extra/".
  std::string name;
  DType dtype = DType::kU8;
  std::vector<uint64_t> shape;  // empty: a scalar; a zero: an empty tensor
  std::vector<uint64_t> global_shape;
  std::vector<uint64_t> offset;

  bool operator==(const TensorSpec&) const = default;
  bool sharded() const { return global_shape != shape; }
};

/// Names in an image are unique, so a rank that has several slices of one tensor calls the further
/// ones by its name, this, and a number.
inline constexpr char kFurtherSlice = '\x1f';
/// The tensor that the entry of an image is, or is a slice of.
std::string_view WholeName(std::string_view name);

/// A tensor's place in an image; begin and end count from the start of the data region.
struct PlacedTensor {
  TensorSpec spec;
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t bytes() const { return end - begin; }
};

/// Small named bytes saved beside the tensors (RNG, scheduler, data position): U8 tensors named
/// "holdfast.extra/<name>" at the end of the image.
struct PlacedExtra {
  std::string name;
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t bytes() const { return end - begin; }
};
struct ExtraSize {
  std::string_view name;
  uint64_t bytes = 0;
};

/// Where everything goes for one description of state. Made once a connection; rendering a header
/// for the next step costs one copy of the cached JSON. Immutable, so thread-safe.
class ImageLayout {
 public:
  /// Validates and orders: descending element size, then name. InvalidArgument names every
  /// offending tensor (duplicate or bad name, a slice outside its global shape, ranks that differ,
  /// overflow).
  static Result<ImageLayout> Plan(std::vector<TensorSpec> tensors);

  /// In image order.
  std::span<const PlacedTensor> tensors() const { return tensors_; }
  /// Position in the vector given to Plan() of the i-th tensor in image order.
  std::span<const uint32_t> original_index() const { return original_index_; }
  /// Bytes of all tensors; extras follow.
  uint64_t tensor_bytes() const { return tensor_bytes_; }

  /// The bytes before the data region: u64 length, JSON, spaces; a multiple of kImageAlign. Extra
  /// names follow ValidateName and are unique.
  Result<std::string> RenderHeader(const ShardIdentity& identity,
                                   std::span<const ExtraSize> extras) const;
  /// The most bytes an image of this layout can take with up to `extra_bytes` of extra state in up
  /// to `extra_count` entries: what a slot must hold.
  uint64_t ImageBytesMax(uint64_t extra_bytes, uint64_t extra_count) const;

 private:
  std::vector<PlacedTensor> tensors_;
  std::vector<uint32_t> original_index_;
  uint64_t tensor_bytes_ = 0;
  std::string tensors_json_;  // "name":{…},… without braces
  std::string slices_json_;   // value of holdfast.slices, escaped for its string
};

/// What a header says; every number checked against `image_bytes`.
struct ParsedImage {
  ShardIdentity identity;  // job empty when the file is a safetensors file not made by Holdfast
  uint32_t format = 0;     // 0 likewise
  std::vector<PlacedTensor> tensors;  // in image order
  std::vector<PlacedExtra> extras;
  std::map<std::string, std::string> metadata;  // all of __metadata__
  uint64_t data_offset = 0;                     // header bytes incl. the length word
  uint64_t image_bytes = 0;
};

/// Bytes of the header (8 + N) from an image's first 8 bytes: how much to read before ParseImage.
Result<uint64_t> HeaderBytes(std::span<const std::byte> first8, uint64_t image_bytes);

/// Parses the head of an image of `image_bytes` in all. `head` holds at least HeaderBytes().
/// Accepts any valid safetensors header, hostile bytes included: DataLoss says what is wrong,
/// Unsupported is a newer format. Memory is bounded by a small multiple of the header's size.
Result<ParsedImage> ParseImage(std::span<const std::byte> head, uint64_t image_bytes);

/// Every way in which the state a caller wants to restore into differs from what was saved: missing
/// tensors, tensors not asked for, other dtype, shape, global shape or offset; one sentence each.
std::vector<std::string> DescribeDifferences(std::span<const PlacedTensor> saved,
                                             std::span<const TensorSpec> wanted);

}  // namespace holdfast
