#include "cli/core/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace holdfast::cli {

namespace {

/// One code point. `bytes` is its length, 0 for bytes that are not UTF-8.
struct CodePoint {
  uint32_t value = 0;
  size_t bytes = 0;
};

CodePoint Decode(std::string_view text, size_t at) {
  auto byte = [&](size_t i) { return static_cast<unsigned char>(text[at + i]); };
  unsigned char lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || at + length > text.size()) return {};
  uint32_t value = lead & (0xffU >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    value = value << 6 | (byte(i) & 0x3fU);
  }
  bool overlong = (length == 3 && value < 0x800) || (length == 4 && value < 0x10000);
  bool surrogate = value >= 0xd800 && value <= 0xdfff;
  if (overlong || surrogate || value > 0x10ffff) return {};
  return {value, length};
}

struct Range {
  uint32_t first;
  uint32_t last;
};

template <size_t n>
bool In(const Range (&ranges)[n], uint32_t value) {
  return std::any_of(std::begin(ranges), std::end(ranges),
                     [&](const Range& r) { return value >= r.first && value <= r.last; });
}

// Control characters, line separators and characters that reorder the following text.
constexpr Range kUnsafe[] = {{0x00, 0x1f},     {0x7f, 0x9f},      {0x061c, 0x061c},
                             {0x200e, 0x200f}, {0x2028, 0x202e},  {0x2066, 0x2069},
                             {0xfeff, 0xfeff}, {0xe0000, 0xe007f}};
constexpr Range kZeroWidth[] = {{0x0300, 0x036f}, {0x0483, 0x0489}, {0x0591, 0x05bd},
                                {0x064b, 0x065f}, {0x0e34, 0x0e3a}, {0x0e47, 0x0e4e},
                                {0x1ab0, 0x1aff}, {0x1dc0, 0x1dff}, {0x200b, 0x200d},
                                {0x20d0, 0x20ff}, {0xfe00, 0xfe0f}, {0xfe20, 0xfe2f}};
constexpr Range kWide[] = {
    {0x1100, 0x115f},   {0x2e80, 0x303e},   {0x3041, 0xa4cf},  {0xa960, 0xa97f}, {0xac00, 0xd7a3},
    {0xf900, 0xfaff},   {0xfe30, 0xfe6f},   {0xff00, 0xff60},  {0xffe0, 0xffe6}, {0x1f300, 0x1f64f},
    {0x1f680, 0x1f6ff}, {0x1f900, 0x1f9ff}, {0x20000, 0x3fffd}};

size_t WidthOf(uint32_t value) {
  if (In(kZeroWidth, value)) return 0;
  return In(kWide, value) ? 2 : 1;
}

}  // namespace

std::string Printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    CodePoint point = Decode(text, at);
    if (point.bytes == 0) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[at++]));
      continue;
    }
    if (In(kUnsafe, point.value)) {
      out += point.value < 0x80 ? fmt::format("\\x{:02x}", point.value)
                                : fmt::format("\\u{{{:x}}}", point.value);
    } else {
      out += text.substr(at, point.bytes);
    }
    at += point.bytes;
  }
  return out;
}

size_t DisplayWidth(std::string_view text) {
  size_t width = 0;
  for (size_t at = 0; at < text.size();) {
    CodePoint point = Decode(text, at);
    width += point.bytes == 0 ? 1 : WidthOf(point.value);
    at += std::max<size_t>(point.bytes, 1);
  }
  return width;
}

std::string FitWidth(std::string_view text, size_t width) {
  if (DisplayWidth(text) <= width) return std::string(text);
  if (width == 0) return "";
  size_t used = 0;
  size_t at = 0;
  while (at < text.size()) {
    CodePoint point = Decode(text, at);
    size_t columns = point.bytes == 0 ? 1 : WidthOf(point.value);
    if (used + columns > width - 1) break;
    used += columns;
    at += std::max<size_t>(point.bytes, 1);
  }
  return std::string(text.substr(0, at)) + "…";
}

std::string Pad(std::string_view text, size_t width, bool align_right) {
  size_t used = DisplayWidth(text);
  std::string space(width > used ? width - used : 0, ' ');
  return align_right ? space + std::string(text) : std::string(text) + space;
}

std::string FormatSeconds(std::optional<int64_t> ms) {
  return ms ? fmt::format("{:.2f}s", static_cast<double>(*ms) / 1000) : "-";
}

std::string FormatShape(const std::vector<uint64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::string FormatDigest(uint64_t digest) { return fmt::format("{:016x}", digest); }

std::string Join(const std::vector<std::string>& items, std::string_view separator) {
  return fmt::format("{}", fmt::join(items, separator));
}

}  // namespace holdfast::cli
