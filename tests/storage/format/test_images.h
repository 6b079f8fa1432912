#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/random.h"
#include "storage/format/image.h"

// Images for tests.

namespace holdfast {

inline std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

inline ShardIdentity Identity(std::string job = "job", uint64_t incarnation = 3,
                              uint64_t step = 120, uint32_t rank = 1, uint32_t world = 4) {
  return {std::move(job), {{incarnation}, {step}}, {rank}, world};
}

/// Returns an unsharded tensor.
inline TensorSpec Whole(std::string name, DType dtype, std::vector<uint64_t> shape) {
  std::vector<uint64_t> zeros(shape.size(), 0);
  return {std::move(name), dtype, shape, shape, std::move(zeros)};
}

inline TensorSpec Slice(std::string name, DType dtype, std::vector<uint64_t> shape,
                        std::vector<uint64_t> global_shape, std::vector<uint64_t> offset) {
  return {std::move(name), dtype, std::move(shape), std::move(global_shape), std::move(offset)};
}

inline std::string RandomBytes(Random& random, size_t bytes) {
  std::string out(bytes, '\0');
  for (char& c : out) c = static_cast<char>(random.Next() >> 56);
  return out;
}

/// Returns a complete image of random data, with its header.
inline Result<std::string> MakeImage(const ImageLayout& layout, const ShardIdentity& identity,
                                     std::span<const ExtraSize> extras, Random& random) {
  HOLDFAST_ASSIGN_OR_RETURN(std::string image, layout.RenderHeader(identity, extras));
  uint64_t bytes = layout.tensor_bytes();
  for (const ExtraSize& extra : extras) bytes += extra.bytes;
  return image + RandomBytes(random, bytes);
}

inline Result<ParsedImage> Parse(std::string_view file) {
  return ParseImage(Bytes(file), file.size());
}

/// Returns a file with this JSON as its header and `data_bytes` zeros.
inline std::string FileOf(std::string_view json, size_t data_bytes = 0) {
  uint64_t length = json.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + std::string(json) + std::string(data_bytes, '\0');
}

}  // namespace holdfast
