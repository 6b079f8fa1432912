#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "storage/format/dtype.h"

// The image of a shard: a valid safetensors file whose data begins at a multiple of 4096. A slot,
// the wire and a file contain the same bytes. docs/formats/image.md is the full description.

namespace holdfast {

inline constexpr uint64_t kImageAlign = 4096;
/// safetensors' own limit on the JSON header.
inline constexpr uint64_t kHeaderBytesMax = 100'000'000;
/// Limits of one shard; checked when planning and when parsing.
inline constexpr uint64_t kTensorsMax = 1'000'000;
inline constexpr uint64_t kTensorNameMax = 4096;
inline constexpr uint64_t kDimensionsMax = 32;
/// The value of `holdfast.format` in images. The release before reads up to kImageFormat, which is
/// therefore the default of a writer. An image with a higher number than kImageFormatMax is
/// refused, never deleted.
inline constexpr uint32_t kImageFormat = 1;
inline constexpr uint32_t kImageFormatMax = 2;
/// From this format on, `holdfast.slices` is a list without names, which takes fewer bytes.
inline constexpr uint32_t kShortSlicesFormat = 2;

/// One tensor that a rank saves: a dense row-major box of `shape` at `offset` in a global tensor of
/// `global_shape`. An unsharded tensor has global_shape == shape and zero offsets.
struct TensorSpec {
  /// UTF-8, unique in the shard, not "__metadata__", not beginning with "holdfast.extra/".
  std::string name;
  DType dtype = DType::kU8;
  std::vector<uint64_t> shape;  // empty: a scalar; a zero: an empty tensor
  std::vector<uint64_t> global_shape;
  std::vector<uint64_t> offset;

  bool operator==(const TensorSpec&) const = default;
  bool sharded() const { return global_shape != shape; }
};

/// Names in an image are unique. A rank that has several slices of one tensor names the second and
/// later ones by the tensor's name, this separator and a number.
inline constexpr char kSliceSeparator = '\x1f';
/// Returns the name of the tensor that an entry of an image contains or is a slice of.
std::string_view BaseTensorName(std::string_view name);

/// A tensor's place in an image; begin and end count from the start of the data region.
struct PlacedTensor {
  TensorSpec spec;
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t bytes() const { return end - begin; }
};

/// Small named bytes saved with the tensors (RNG, scheduler, data position): U8 tensors named
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

/// The placement of all tensors of one description of state. Made once per connection; rendering a
/// header for the next step costs one copy of the cached JSON. Immutable, so thread-safe.
class ImageLayout {
 public:
  /// Validates the tensors and orders them by descending element size, then by `places`, then by
  /// name. `places` has a number for each tensor, or is empty. InvalidArgument names every invalid
  /// tensor: a duplicate or bad name, a slice outside its global shape, different numbers of
  /// dimensions, overflow. Headers of the layout have `format`, 1 to kImageFormatMax.
  static Result<ImageLayout> Plan(std::vector<TensorSpec> tensors,
                                  std::span<const uint64_t> places = {},
                                  uint32_t format = kImageFormat);

  /// Returns the tensors in image order.
  std::span<const PlacedTensor> tensors() const { return tensors_; }
  /// Maps the i-th tensor in image order to its index in the vector that was passed to Plan().
  std::span<const uint32_t> original_index() const { return original_index_; }
  /// Returns the bytes of all tensors; the extras follow them.
  uint64_t tensor_bytes() const { return tensor_bytes_; }

  /// Returns the bytes before the data region: u64 length, JSON, spaces; a multiple of kImageAlign.
  /// The names of extras must pass ValidateName and be unique.
  Result<std::string> RenderHeader(const ShardIdentity& identity,
                                   std::span<const ExtraSize> extras) const;
  /// Returns the most bytes of an image of this layout with up to `extra_bytes` of extra state in
  /// up to `extra_count` entries: the size that a slot needs.
  uint64_t ImageBytesMax(uint64_t extra_bytes, uint64_t extra_count) const;
  /// Returns the JSON of a header without the entries and slices of this layout's tensors, or
  /// nullopt when the header has other tensors.
  std::optional<std::string> WithoutTensors(std::string_view json) const;

 private:
  uint32_t format_ = kImageFormat;
  std::vector<PlacedTensor> tensors_;
  std::vector<uint32_t> original_index_;
  uint64_t tensor_bytes_ = 0;
  std::string tensors_json_;  // "name":{…},… without braces
  std::string slices_json_;   // value of holdfast.slices, with its brackets, escaped
};

/// The contents of a header; every number has been checked against `image_bytes`.
struct ParsedImage {
  ShardIdentity identity;             // job is empty if the file was not made by Holdfast
  uint32_t format = 0;                // 0 if the file was not made by Holdfast
  std::vector<PlacedTensor> tensors;  // in image order; empty if has_expected
  bool has_expected = false;          // the tensors are exactly those that the caller expected
  std::vector<PlacedExtra> extras;
  std::map<std::string, std::string> metadata;  // all of __metadata__
  uint64_t data_offset = 0;                     // header bytes incl. the length word
  uint64_t image_bytes = 0;
};

/// Returns the length of the header in bytes (8 + N), given an image's first 8 bytes. ParseImage
/// needs this many bytes.
Result<uint64_t> HeaderBytes(std::span<const std::byte> first8, uint64_t image_bytes);

/// Parses the header of an image with `image_bytes` bytes in total. `head` has at least
/// HeaderBytes() bytes and is untrusted. Any valid safetensors header is accepted. DataLoss
/// describes what is wrong; Unsupported: a newer format. Memory is bounded by a small multiple of
/// the header's size. A header with exactly the tensors of `expected`, in this order, is parsed
/// without reading their entries, which takes a small part of the time for thousands of tensors.
/// The result then has has_expected, no tensors, and no slices in the metadata.
Result<ParsedImage> ParseImage(std::span<const std::byte> head, uint64_t image_bytes,
                               const ImageLayout* expected = nullptr);

/// Returns one sentence for each difference between the saved state and the state that a caller
/// requests: missing tensors, tensors that were not requested, other dtypes, shapes, global
/// shapes or offsets.
std::vector<std::string> DescribeDifferences(std::span<const PlacedTensor> saved,
                                             std::span<const TensorSpec> wanted);

}  // namespace holdfast
