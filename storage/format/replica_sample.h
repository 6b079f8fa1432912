#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// Each rank that holds a tensor replica saves a part of it. To detect ranks whose values differ,
// each rank also saves a sample of the bytes that other ranks save, a different one at each save.
// An extra lists the bytes of the image that are samples, and for each of them the bytes of a
// tensor that it has. The checksums of samples from different images are compared.
// docs/formats/image.md describes the extra.

namespace holdfast {

struct ParsedImage;

/// The name of the extra that lists the samples of an image.
inline constexpr std::string_view kReplicaSamplesExtra = "holdfast.samples";
/// Tensors with this prefix are copies of what other ranks save; nothing is restored from them.
inline constexpr std::string_view kSampleCopiesPrefix = "<samples>";
/// The most bytes of a list. A longer list is ignored, because one message carries the lists of
/// many ranks of a node.
inline constexpr uint64_t kReplicaSamplesBytesMax = 256 << 10;
/// The most samples of an image; further samples are ignored.
inline constexpr size_t kReplicaSamplesMax = 512;
/// The most bytes of the name of a sample's tensor; samples with longer names are ignored.
inline constexpr size_t kReplicaSampleNameMax = 4608;

/// The bytes [first, first + bytes) of a tensor in one rank's memory. All ranks that list the same
/// bytes of the same tensor should have the same values.
struct ReplicaSample {
  std::string tensor;  // its name, and which part of it where ranks hold parts
  uint64_t first = 0;
  uint64_t bytes = 0;
  uint32_t crc = 0;  // CRC-32C
  bool operator==(const ReplicaSample&) const = default;
};

/// Returns the samples that `image` lists, as long as their total length does not exceed the
/// image's length. Invalid entries are skipped: the list is untrusted, and the trainer may change
/// its bytes at any time.
std::vector<ReplicaSample> TakeReplicaSamples(std::span<const std::byte> image,
                                              const ParsedImage& parsed);

}  // namespace holdfast
