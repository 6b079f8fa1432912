#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "storage/format/image.h"

// Ranks that hold the same tensor save a part of it each. So that ranks whose values differ are
// noticed, each rank also saves a sample of what other ranks save, another one at each save, and
// lists in an extra which bytes of its image are which bytes of which tensor. Checksums of the
// images are compared. docs/formats/image.md describes the extra.

namespace holdfast {

/// The name of the extra that lists the samples of an image.
inline constexpr std::string_view kReplicaSamplesExtra = "holdfast.samples";
/// Tensors whose names begin so are copies of what other ranks save; nothing is restored from them.
inline constexpr std::string_view kSampleCopiesPrefix = "<samples>";
/// Longer lists are ignored: many ranks of a node report theirs in one message.
inline constexpr uint64_t kReplicaSamplesBytesMax = 256 << 10;
/// Further ones are ignored.
inline constexpr size_t kReplicaSamplesMax = 512;
/// Of the name of a sample's tensor; samples with longer ones are ignored.
inline constexpr size_t kReplicaSampleNameMax = 4608;

/// Bytes [first, first + bytes) of a tensor as one rank holds them; all ranks that list the same
/// bytes of the same tensor should hold the same values.
struct ReplicaSample {
  std::string tensor;  // its name, and which part of it where ranks hold parts
  uint64_t first = 0;
  uint64_t bytes = 0;
  uint32_t crc = 0;  // CRC-32C
  bool operator==(const ReplicaSample&) const = default;
};

/// The samples that `image` lists, until they have as many bytes as the image. What it lists
/// wrongly is left out: the trainer writes it, and may change the bytes at any time.
std::vector<ReplicaSample> TakeReplicaSamples(std::span<const std::byte> image,
                                              const ParsedImage& parsed);

}  // namespace holdfast
