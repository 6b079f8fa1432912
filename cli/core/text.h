#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json/values.h"

namespace holdfast::cli {

/// Returns `text` in a form that is safe to print: control characters, bidirectional overrides and
/// bytes that are not UTF-8 become \xNN or \u{N}. Names may come from untrusted files.
std::string Printable(std::string_view text);

/// Returns the terminal columns of printable UTF-8: wide characters count two, combining marks
/// none.
size_t DisplayWidth(std::string_view text);
/// Returns `text` cut to at most `width` columns, ending in "…" when it was cut.
std::string FitWidth(std::string_view text, size_t width);
/// Returns `text` padded with spaces to `width` columns, on the right or (align_right) the left.
std::string Pad(std::string_view text, size_t width, bool align_right);

/// "1.25s" or "-".
std::string FormatSeconds(std::optional<int64_t> ms);
/// "[2048, 1024]", "[]" for a scalar.
std::string FormatShape(const std::vector<uint64_t>& shape);
/// "0123456789abcdef"
std::string FormatDigest(uint64_t digest);
/// Returns the items with `separator` between them.
std::string Join(const std::vector<std::string>& items, std::string_view separator);

}  // namespace holdfast::cli
