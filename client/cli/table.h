#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace holdfast::cli {

/// How a cell stands out. The text says the same without colour.
enum class Tone { kPlain, kGood, kWarn, kBad, kFaint };

struct Cell {
  std::string text;
  Tone tone = Tone::kPlain;
};

struct Column {
  std::string title;
  bool align_right = false;
  bool may_shrink = false;  // gives up its width first when the terminal is narrow
};

/// Rows under titled columns, fitted to a width.
class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  /// As many cells as columns.
  void Add(std::vector<Cell> row) { rows_.push_back(std::move(row)); }
  bool empty() const { return rows_.empty(); }

  /// The whole table, a line a row, no trailing spaces. `width` 0 means unlimited; otherwise no
  /// line is wider: columns that may shrink are cut first, widest first, then the others. Cells are
  /// made printable here.
  std::string Render(size_t width, bool colour) const;

 private:
  std::vector<size_t> FittedWidths(const std::vector<std::vector<std::string>>& cells,
                                   size_t width) const;

  std::vector<Column> columns_;
  std::vector<std::vector<Cell>> rows_;
};

/// `text` in the colour of `tone`, or as it is.
std::string Coloured(const std::string& text, Tone tone, bool colour);

}  // namespace holdfast::cli
