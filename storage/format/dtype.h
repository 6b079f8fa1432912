#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/status.h"

namespace holdfast {

/// Element types of safetensors. Numbers are stable: they are part of the C API.
enum class DType : uint8_t {
  kBool = 0,
  kU8 = 1,
  kI8 = 2,
  kF8E4M3 = 3,
  kF8E5M2 = 4,
  kU16 = 5,
  kI16 = 6,
  kF16 = 7,
  kBF16 = 8,
  kU32 = 9,
  kI32 = 10,
  kF32 = 11,
  kU64 = 12,
  kI64 = 13,
  kF64 = 14,
  kC64 = 15,
};

std::span<const DType> AllDTypes();
/// Returns the bytes per element, or 0 for an unknown dtype.
uint32_t SizeOf(DType dtype);
/// Returns the name in a safetensors header: "F32", "BF16", "F8_E4M3", …
std::string_view NameOf(DType dtype);
/// Parses such a name. Unsupported: a dtype of safetensors that Holdfast does not store.
Result<DType> ParseDType(std::string_view name);
/// Converts a number from the C API or the wire.
Result<DType> DTypeFromNumber(uint32_t number);

}  // namespace holdfast
