#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "storage/format/image.h"
#include "storage/format/parts.h"
#include "tests/fuzz/require.h"

namespace holdfast {
namespace {

std::span<const std::byte> Bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

/// Checks the invariants of every accepted header.
void RequireSound(const ParsedImage& image) {
  uint64_t reached = 0;
  for (const PlacedTensor& tensor : image.tensors) {
    const TensorSpec& spec = tensor.spec;
    FUZZ_REQUIRE(tensor.begin == reached && tensor.end >= tensor.begin);
    FUZZ_REQUIRE(spec.shape.size() <= kDimensionsMax);
    FUZZ_REQUIRE(spec.global_shape.size() == spec.shape.size());
    FUZZ_REQUIRE(spec.offset.size() == spec.shape.size());
    unsigned long long bytes = SizeOf(spec.dtype);
    for (size_t d = 0; d < spec.shape.size(); ++d) {
      FUZZ_REQUIRE(!__builtin_mul_overflow(bytes, spec.shape[d], &bytes));
      FUZZ_REQUIRE(spec.offset[d] <= spec.global_shape[d]);
      FUZZ_REQUIRE(spec.shape[d] <= spec.global_shape[d] - spec.offset[d]);
    }
    FUZZ_REQUIRE(bytes == tensor.bytes());
    reached = tensor.end;
  }
  for (const PlacedExtra& extra : image.extras) {
    FUZZ_REQUIRE(extra.begin == reached && extra.end >= extra.begin);
    reached = extra.end;
  }
  FUZZ_REQUIRE(image.data_offset + reached == image.image_bytes);
  FUZZ_REQUIRE((image.format == 0) == image.identity.job.empty());
}

/// Checks that an accepted Holdfast image can be rendered again and parses to the same values.
void RequireRenders(const ParsedImage& image) {
  std::vector<TensorSpec> specs;
  for (const PlacedTensor& tensor : image.tensors) specs.push_back(tensor.spec);
  Result<ImageLayout> layout = ImageLayout::Plan(specs, {}, image.format);
  const bool has_empty_name =
      std::ranges::any_of(specs, [](const TensorSpec& spec) { return spec.name.empty(); });
  FUZZ_REQUIRE(layout.has_value() || has_empty_name);
  if (!layout) return;
  std::vector<ExtraSize> extras;
  uint64_t extra_bytes = 0;
  for (const PlacedExtra& extra : image.extras) {
    extras.push_back({extra.name, extra.bytes()});
    extra_bytes += extra.bytes();
  }
  Result<std::string> header = layout->RenderHeader(image.identity, extras);
  FUZZ_REQUIRE(header.has_value());
  const uint64_t image_bytes = header->size() + layout->tensor_bytes() + extra_bytes;
  FUZZ_REQUIRE(image_bytes <= layout->ImageBytesMax(extra_bytes, extras.size()));
  Result<ParsedImage> again = ParseImage(Bytes(*header), image_bytes);
  FUZZ_REQUIRE(again.has_value());
  FUZZ_REQUIRE(again->identity == image.identity);
  FUZZ_REQUIRE(again->format == image.format);
  FUZZ_REQUIRE(again->extras.size() == image.extras.size());
  FUZZ_REQUIRE(DescribeDifferences(again->tensors, specs).empty());
}

/// Checks that the parts of an image cover it and that each part is valid.
void RequireParts(const ParsedImage& image, uint32_t count) {
  Result<std::vector<PartPlan>> plans = PlanParts(image, count);
  FUZZ_REQUIRE(plans.has_value());
  FUZZ_REQUIRE(!plans->empty() && plans->size() <= count);
  uint64_t reached = plans->size() == 1 ? 0 : image.data_offset;
  for (const PartPlan& plan : *plans) {
    FUZZ_REQUIRE(plan.image_begin == reached && plan.image_end >= reached);
    reached = plan.image_end;
    if (plans->size() == 1) continue;
    FUZZ_REQUIRE(plan.header.size() % kImageAlign == plan.image_begin % kImageAlign);
    Result<ParsedImage> part =
        ParseImage(Bytes(plan.header), plan.header.size() + plan.image_end - plan.image_begin);
    FUZZ_REQUIRE(part.has_value());
    RequireSound(*part);
  }
  FUZZ_REQUIRE(reached == image.image_bytes);
}

void ParseOne(std::span<const std::byte> head, uint64_t image_bytes) {
  Result<ParsedImage> image = ParseImage(head, image_bytes);
  if (!image) {
    FUZZ_REQUIRE(!image.error().message().empty() && image.error().message().size() < 1000);
    return;
  }
  RequireSound(*image);
  if (image->format == 0) return;
  RequireRenders(*image);
  RequireParts(*image, 1 + static_cast<uint32_t>(head.size() % 7));
}

}  // namespace
}  // namespace holdfast

/// An input with '{' at byte 4 is a u32 number of data bytes, followed by the JSON; the length
/// field is added here. Any other input is a complete file.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace holdfast;
  if (size > 4 && data[4] == '{') {
    uint32_t data_bytes = 0;
    std::memcpy(&data_bytes, data, sizeof(data_bytes));
    const uint64_t json_bytes = size - 4;
    std::string head(8, '\0');
    std::memcpy(head.data(), &json_bytes, sizeof(json_bytes));
    head.append(reinterpret_cast<const char*>(data) + 4, json_bytes);
    ParseOne(Bytes(head), head.size() + data_bytes);
  } else {
    ParseOne(std::as_bytes(std::span(data, size)), size);
  }
  return 0;
}
