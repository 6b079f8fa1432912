#include "cli/core/table.h"

#include <algorithm>
#include <numeric>
#include <string_view>

#include "cli/core/text.h"

namespace holdfast::cli {

namespace {
constexpr size_t kGap = 2;
constexpr size_t kColumnMin = 4;

std::string_view EscapeOf(Tone tone) {
  switch (tone) {
    case Tone::kPlain:
      return "";
    case Tone::kGood:
      return "\x1b[32m";
    case Tone::kWarn:
      return "\x1b[33m";
    case Tone::kBad:
      return "\x1b[31m";
    case Tone::kFaint:
      return "\x1b[2m";
  }
  return "";
}
}  // namespace

std::string Coloured(const std::string& text, Tone tone, bool colour) {
  if (!colour || tone == Tone::kPlain || text.empty()) return text;
  return std::string(EscapeOf(tone)) + text + "\x1b[0m";
}

std::vector<size_t> Table::FittedWidths(const std::vector<std::vector<std::string>>& cells,
                                        size_t width) const {
  std::vector<size_t> widths(columns_.size());
  for (const auto& row : cells) {
    for (size_t i = 0; i < widths.size(); ++i)
      widths[i] = std::max(widths[i], DisplayWidth(row[i]));
  }
  if (width == 0) return widths;
  size_t total = std::accumulate(widths.begin(), widths.end(), kGap * (widths.size() - 1));
  for (bool shrinkable : {true, false}) {
    while (total > width) {
      size_t widest = widths.size();
      for (size_t i = 0; i < widths.size(); ++i) {
        if (columns_[i].may_shrink != shrinkable || widths[i] <= kColumnMin) continue;
        if (widest == widths.size() || widths[i] > widths[widest]) widest = i;
      }
      if (widest == widths.size()) break;
      --widths[widest];
      --total;
    }
  }
  return widths;
}

std::string Table::Render(size_t width, bool colour) const {
  std::vector<std::vector<std::string>> cells(1);
  for (const Column& column : columns_) cells[0].push_back(column.title);
  for (const auto& row : rows_) {
    auto& printable = cells.emplace_back();
    for (size_t i = 0; i < columns_.size(); ++i)
      printable.push_back(i < row.size() ? Printable(row[i].text) : "");
  }
  std::vector<size_t> widths = FittedWidths(cells, width);
  std::string out;
  for (size_t r = 0; r < cells.size(); ++r) {
    std::string line;
    size_t used = 0;
    for (size_t i = 0; i < columns_.size(); ++i) {
      std::string text = FitWidth(cells[r][i], widths[i]);
      size_t at = used + widths[i];
      if (width > 0 && at > width) break;  // Too narrow for all columns: the last ones are omitted.
      bool last = i + 1 == columns_.size();
      if (!last || columns_[i].align_right) text = Pad(text, widths[i], columns_[i].align_right);
      Tone tone = r == 0                    ? Tone::kPlain
                  : i < rows_[r - 1].size() ? rows_[r - 1][i].tone
                                            : Tone::kPlain;
      line += Coloured(text, tone, colour);
      if (!last) line += std::string(kGap, ' ');
      used = at + kGap;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

}  // namespace holdfast::cli
