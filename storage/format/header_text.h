#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/ids.h"
#include "storage/format/dtype.h"

// The text of a safetensors header, written piece by piece. Private to storage/format.

namespace holdfast {

struct TensorSpec;

/// Keys of `__metadata__`, and the prefix of the names of extra state.
inline constexpr std::string_view kMetadataKey = "__metadata__";
inline constexpr std::string_view kOwnPrefix = "holdfast.";
inline constexpr std::string_view kExtraPrefix = "holdfast.extra/";
inline constexpr std::string_view kFormatKey = "holdfast.format";
inline constexpr std::string_view kJobKey = "holdfast.job";
inline constexpr std::string_view kIncarnationKey = "holdfast.incarnation";
inline constexpr std::string_view kStepKey = "holdfast.step";
inline constexpr std::string_view kRankKey = "holdfast.rank";
inline constexpr std::string_view kWorldKey = "holdfast.world";
inline constexpr std::string_view kSlicesKey = "holdfast.slices";
inline constexpr std::string_view kPartKey = "holdfast.part";
inline constexpr std::string_view kPartsKey = "holdfast.parts";
inline constexpr std::string_view kGlobalShapeKey = "global_shape";
inline constexpr std::string_view kOffsetKey = "offset";

/// Data offsets and sums of bytes stay below this, so that the sum of two never overflows.
inline constexpr uint64_t kImageBytesMax = uint64_t{1} << 62;

/// Checks strictly: no overlong forms, no surrogates, nothing above U+10FFFF.
bool IsUtf8(std::string_view text);
/// Returns `'name'` for a message: at most 80 bytes, with control characters and invalid UTF-8
/// replaced.
std::string QuoteForMessage(std::string_view name);
/// Returns e.g. "[2, 3]" for a message.
std::string ShapeForMessage(std::span<const uint64_t> shape);

/// Computes the bytes of a dense tensor. Returns false when they are not below kImageBytesMax.
bool TensorBytes(DType dtype, std::span<const uint64_t> shape, uint64_t* bytes);

/// Appends `text` as the content of a JSON string; valid UTF-8 stays unchanged.
void AppendEscaped(std::string_view text, std::string* out);
/// Appends `"name":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}`, after a comma unless `out`
/// is empty.
void AppendTensorEntry(std::string_view name, DType dtype, std::span<const uint64_t> shape,
                       uint64_t begin, uint64_t end, std::string* out);

/// The value of `holdfast.slices` in an image of `format`.
class SlicesText {
 public:
  explicit SlicesText(uint32_t format) : format_(format) {}

  /// Adds the next tensor in image order.
  void Add(const TensorSpec& tensor);
  /// Returns the value, escaped for the string that contains it.
  std::string Escaped() const;

 private:
  uint32_t format_;
  std::string entries_;
};

/// The contents of one header. `tensors` and `extras` are tensor entries; `slices` is the escaped
/// value of `holdfast.slices` in `format`. `parts` is 0 except in a part file.
struct HeaderText {
  uint32_t format = 0;
  std::string_view tensors;
  std::string_view extras;
  std::string_view slices;
  uint32_t part = 0;
  uint32_t parts = 0;
};

/// Returns the length word, the JSON, and spaces that pad the header to a length congruent to
/// `residue` modulo kImageAlign. InvalidArgument for an invalid identity or a header that is too
/// long.
Result<std::string> AssembleHeader(const ShardIdentity& identity, const HeaderText& text,
                                   uint64_t residue);
/// Returns the most bytes that AssembleHeader returns for entries of these lengths, with padding.
uint64_t HeaderBytesBound(uint64_t tensors, uint64_t extras, uint64_t slices);

/// Checks the job name, world and rank of an image or a seal.
Status ValidateIdentity(const ShardIdentity& identity);

}  // namespace holdfast
