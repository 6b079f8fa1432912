#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "coordinator/detect/robust.h"

// One member's record: how late it came in its last windows (a window is about one iteration), and
// how late it used to come.

namespace holdfast::detect {

/// From when a member counts as late, as shares of a window.
struct LateFrom {
  double peers = 0;   // beyond the usual member
  double past = 0;    // beyond both the usual member and what was usual for itself
  double strong = 0;  // very late: a stall of its own
  double small = 0;   // little beyond what was usual for itself, but for long
};

/// The bits of the last windows, newest lowest.
class LastWindows {
 public:
  static constexpr uint32_t kKept = 128;

  void Add(bool bit) {
    bits_[1] = bits_[1] << 1U | bits_[0] >> 63U;
    bits_[0] = bits_[0] << 1U | (bit ? 1U : 0U);
  }
  /// Of the last `width`, at most kKept.
  uint32_t Count(uint32_t width) const;

 private:
  std::array<uint64_t, 2> bits_{};
};

class Track {
 public:
  static constexpr size_t kRecent = 20;
  static constexpr size_t kLong = 60;
  /// How late "very late" is: each level so many times the one before. A stall that is longer than
  /// those of the others shows at a level that they do not reach.
  static constexpr size_t kLevels = 4;
  static constexpr double kLevelStep = 1.6;

  /// `excess`: own time beyond the usual member's, as a share of the window. `windows`: that are
  /// looked at for a late member.
  /// Returns the highest level of "very late" that it reaches, beside the others and itself.
  size_t Add(double excess, const LateFrom& from, uint32_t windows);

  /// Median of the last windows.
  double excess() const { return static_cast<double>(recent_.Median()); }
  /// How much more that is than what was usual before them; 0 while that is not known.
  double shift() const;
  /// Standard error of that, when windows differ by `noise` (a standard deviation).
  double shift_error(double noise) const;
  /// What was usual before.
  double usual() const { return static_cast<double>(usual_); }
  bool knows_past() const { return past_.size() >= kPastLeast; }
  /// The excess that the last windows and those long before them have in common; 0 while there are
  /// too few. Found anew every kRecent windows: chance has few goes at it.
  double lasting() const { return lasting_; }
  /// How much more that is than what was usual before.
  double lasting_shift() const {
    return lasting_ == 0 ? 0 : lasting_ - static_cast<double>(usual_);
  }
  double lasting_shift_error(double noise) const;
  /// A small change that lasted long. Who only fell back to the others is not slow.
  bool small_change(double from) const {
    return lasting_ > 0 && lasting_ >= from / 2 && lasting_shift() >= from;
  }
  /// The excess of kRecent windows ago, when there is one.
  std::optional<double> oldest() const {
    if (!recent_.full()) return std::nullopt;
    return static_cast<double>(recent_.oldest());
  }
  /// By how much its own windows differ, by those before the last ones; 0 while there are few.
  double own_noise() const;
  size_t recent() const { return recent_.size(); }
  uint32_t windows() const { return windows_; }
  /// Of the last `windows`, at most LastWindows::kKept: later than its peers.
  uint32_t late_count(uint32_t windows) const { return late_.Count(windows); }
  /// Of the last `windows`: later than it used to be.
  uint32_t slower_count(uint32_t windows) const { return slower_.Count(windows); }
  /// Very late, of the last `width` windows.
  uint32_t strong_count(size_t level = 0, uint32_t width = LastWindows::kKept) const {
    return strong_[level].Count(width);
  }
  /// The highest level that `excess` reaches, from 1; 0: none.
  static size_t LevelOf(double excess, double strong_from);

 private:
  void Learn(double excess);
  double ErrorOf(double noise, size_t windows) const;

  static constexpr size_t kPastLeast = 8;

  Recent<float, kRecent> recent_;
  Recent<float, kLong> before_;  // what left `recent_`: a change is seen before it is learned
  /// The first windows, and then now and then one that left `before_` while the member was as
  /// usual: a slowdown is not learned.
  Recent<float, 32> past_;
  float usual_ = 0;  // the median of it
  double lasting_ = 0;
  LastWindows late_;
  LastWindows slower_;
  std::array<LastWindows, kLevels> strong_;
  uint32_t windows_ = 0;
};

}  // namespace holdfast::detect
