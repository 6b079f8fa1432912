#include "storage/format/dtype.h"

#include <array>
#include <string>

namespace holdfast {

namespace {

struct DTypeRow {
  DType dtype;
  uint32_t bytes;
  std::string_view name;
};

constexpr std::array<DTypeRow, 16> kRows = {{
    {DType::kBool, 1, "BOOL"},
    {DType::kU8, 1, "U8"},
    {DType::kI8, 1, "I8"},
    {DType::kF8E4M3, 1, "F8_E4M3"},
    {DType::kF8E5M2, 1, "F8_E5M2"},
    {DType::kU16, 2, "U16"},
    {DType::kI16, 2, "I16"},
    {DType::kF16, 2, "F16"},
    {DType::kBF16, 2, "BF16"},
    {DType::kU32, 4, "U32"},
    {DType::kI32, 4, "I32"},
    {DType::kF32, 4, "F32"},
    {DType::kU64, 8, "U64"},
    {DType::kI64, 8, "I64"},
    {DType::kF64, 8, "F64"},
    {DType::kC64, 8, "C64"},
}};

constexpr std::array<DType, kRows.size()> MakeAll() {
  std::array<DType, kRows.size()> all{};
  for (size_t i = 0; i < kRows.size(); ++i) all[i] = kRows[i].dtype;
  return all;
}
constexpr std::array<DType, kRows.size()> kAll = MakeAll();

constexpr bool RowsFollowNumbers() {
  for (size_t i = 0; i < kRows.size(); ++i) {
    if (static_cast<size_t>(kRows[i].dtype) != i) return false;
  }
  return true;
}
static_assert(RowsFollowNumbers());

// Dtypes that safetensors defines and Holdfast does not support: several elements per byte, or
// scale types. They are listed so that a foreign file gets the right error message.
constexpr std::array<std::string_view, 6> kUnsupported = {"F4",      "F6_E2M3",     "F6_E3M2",
                                                          "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"};

}  // namespace

std::span<const DType> AllDTypes() { return kAll; }

uint32_t SizeOf(DType dtype) {
  auto number = static_cast<size_t>(dtype);
  return number < kRows.size() ? kRows[number].bytes : 0;
}

std::string_view NameOf(DType dtype) {
  auto number = static_cast<size_t>(dtype);
  return number < kRows.size() ? kRows[number].name : "unknown";
}

Result<DType> ParseDType(std::string_view name) {
  for (const DTypeRow& row : kRows) {
    if (row.name == name) return row.dtype;
  }
  for (std::string_view other : kUnsupported) {
    if (other == name) {
      return Fail(UnsupportedError("dtype " + std::string(name) +
                                   " exists in safetensors but Holdfast does not support it"));
    }
  }
  std::string shown;
  for (char c : name.substr(0, 32)) shown += (c >= 0x20 && c < 0x7f) ? c : '?';
  return Fail(InvalidArgumentError("'" + shown + "' is not a dtype: use F32, BF16, I64, U8, …"));
}

Result<DType> DTypeFromNumber(uint32_t number) {
  if (number < kRows.size()) return kRows[number].dtype;
  return Fail(InvalidArgumentError("dtype number " + std::to_string(number) +
                                   " is not known; the largest is " +
                                   std::to_string(kRows.size() - 1)));
}

}  // namespace holdfast
