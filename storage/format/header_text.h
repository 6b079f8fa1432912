#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "storage/base/ids.h"
#include "storage/format/dtype.h"

// The text of a safetensors header, written piece by piece. Only this room includes it.

namespace holdfast {

/// Names in `__metadata__` and of extra state.
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

/// Data offsets and sums of bytes stay below this, so that adding two never overflows.
inline constexpr uint64_t kImageBytesMax = uint64_t{1} << 62;

/// Strict: no overlong forms, no surrogates, nothing above U+10FFFF.
bool IsUtf8(std::string_view text);
/// `'name'` for a message: at most 80 bytes of it, control characters and broken UTF-8 replaced.
std::string QuoteForMessage(std::string_view name);
/// "[2, 3]" for a message.
std::string ShapeForMessage(std::span<const uint64_t> shape);

/// Bytes of a dense tensor; false when the product does not stay below kImageBytesMax.
bool TensorBytes(DType dtype, std::span<const uint64_t> shape, uint64_t* bytes);

/// `text` as the inside of a JSON string; valid UTF-8 goes through as it is.
void AppendEscaped(std::string_view text, std::string* out);
/// `"name":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}`, after a comma unless `out` is
/// empty.
void AppendTensorEntry(std::string_view name, DType dtype, std::span<const uint64_t> shape,
                       uint64_t begin, uint64_t end, std::string* out);
/// `"name":{"global_shape":[4,3],"offset":[2,0]}`, after a comma unless `out` is empty.
void AppendSliceEntry(std::string_view name, std::span<const uint64_t> global_shape,
                      std::span<const uint64_t> offset, std::string* out);

/// What goes into one header. `tensors` and `extras` are tensor entries; `slices` are slice
/// entries, escaped for the string that holds them. `parts` is 0 but in a part file.
struct HeaderText {
  std::string_view tensors;
  std::string_view extras;
  std::string_view slices;
  uint32_t part = 0;
  uint32_t parts = 0;
};

/// The length word, the JSON and as many spaces as make the whole congruent to `residue` modulo
/// kImageAlign. InvalidArgument for an identity that no image may carry or a header that is too
/// long.
Result<std::string> AssembleHeader(const ShardIdentity& identity, const HeaderText& text,
                                   uint64_t residue);
/// The most bytes AssembleHeader takes for entries of these lengths, padding included.
uint64_t HeaderBytesBound(uint64_t tensors, uint64_t extras, uint64_t slices);

/// Job name, world and rank as every image and seal must have them.
Status ValidateIdentity(const ShardIdentity& identity);

}  // namespace holdfast
