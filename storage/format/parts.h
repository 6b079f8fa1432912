#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "storage/format/image.h"

namespace holdfast {

/// One part file of a shard that is spread over several devices: its own header, followed by the
/// image bytes [image_begin, image_end). Each part is a valid safetensors file. It contains
/// complete tensors and row ranges of tensors (as slices, in its `holdfast.slices`), its part
/// number and the number of parts.
struct PartPlan {
  std::string header;        // ends at a file offset congruent to image_begin modulo kImageAlign
  uint64_t image_begin = 0;  // in the image, not in the data region
  uint64_t image_end = 0;
};

/// Cuts an image into up to `count` parts of about equal size; fewer when the image is too small. A
/// single part has an empty header and spans the complete image.
Result<std::vector<PartPlan>> PlanParts(const ParsedImage& image, uint32_t count);

}  // namespace holdfast
