#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace holdfast::cli {

/// The emphasis of a cell. The text must have the same information without colour.
enum class Tone { kPlain, kGood, kWarn, kBad, kFaint };

struct Cell {
  std::string text;
  Tone tone = Tone::kPlain;
};

struct Column {
  std::string title;
  bool align_right = false;
  bool may_shrink = false;  // is shortened first when the terminal is narrow
};

/// Rows under titled columns, fitted to a width.
class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  /// Adds a row with as many cells as columns.
  void Add(std::vector<Cell> row) { rows_.push_back(std::move(row)); }
  bool empty() const { return rows_.empty(); }

  /// Returns the table, one line per row, without trailing spaces. No line is wider than `width`
  /// (0: unlimited): columns that may shrink are cut first, widest first, then the others. Makes
  /// cells printable.
  std::string Render(size_t width, bool colour) const;

 private:
  std::vector<size_t> FittedWidths(const std::vector<std::vector<std::string>>& cells,
                                   size_t width) const;

  std::vector<Column> columns_;
  std::vector<std::vector<Cell>> rows_;
};

/// Returns `text` in the colour of `tone`, or unchanged without `colour`.
std::string Coloured(const std::string& text, Tone tone, bool colour);

}  // namespace holdfast::cli
