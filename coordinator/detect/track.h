#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "coordinator/detect/robust.h"

// The lateness history of one member: how late it was in its last windows, and how late it was
// before. A window is about one iteration.

namespace holdfast::detect {

/// Thresholds from which a member counts as late, as shares of a window.
struct LatenessThresholds {
  double peers = 0;      // beyond the usual member
  double past = 0;       // beyond both the usual member and the member's own past
  double very_late = 0;  // a stall
  double small = 0;      // a small but long-lasting change beyond the member's own past
};

/// One bit for each of the last windows. The lowest bit is the newest.
class WindowHistory {
 public:
  static constexpr uint32_t kCapacity = 128;

  void Add(bool bit) {
    bits_[1] = bits_[1] << 1U | bits_[0] >> 63U;
    bits_[0] = bits_[0] << 1U | (bit ? 1U : 0U);
  }
  /// Returns the number of bits set among the last `width`, at most kCapacity.
  uint32_t Count(uint32_t width) const;

 private:
  std::array<uint64_t, 2> bits_{};
};

class Track {
 public:
  static constexpr size_t kRecent = 20;
  static constexpr size_t kLong = 60;
  /// Levels of "very late". The threshold of each level is kLevelStep times that of the level
  /// below. Stalls that are longer than those of other members show at a level that the others do
  /// not reach.
  static constexpr size_t kLevels = 4;
  static constexpr double kLevelStep = 1.6;

  /// Adds a window. `excess`: own time beyond the usual member's, as a share of the window.
  /// `windows`: the number of windows that are examined for a straggler. Returns the highest level
  /// of "very late" that the member reaches relative to the other members and to its own past.
  size_t Add(double excess, const LatenessThresholds& from, uint32_t windows);

  /// The median excess of the last windows.
  double excess() const { return static_cast<double>(recent_.Median()); }
  /// The least excess of the last `windows`, at most kRecent; 0 while there are fewer.
  double least(size_t windows) const;
  /// The increase of excess() over the usual excess of the past; 0 while the past is unknown.
  double shift() const;
  /// The standard error of shift(). `noise`: the standard deviation of a window.
  double shift_error(double noise) const;
  /// The usual excess of the past.
  double usual() const { return static_cast<double>(usual_); }
  bool knows_past() const { return past_.size() >= kPastMin; }
  /// The excess that the last windows and the many windows before them have in common; 0 while
  /// there are too few windows. Recomputed every kRecent windows, which bounds the number of tests
  /// and so the false positives.
  double lasting() const { return lasting_; }
  /// The increase of lasting() over the usual excess of the past.
  double lasting_shift() const {
    return lasting_ == 0 ? 0 : lasting_ - static_cast<double>(usual_);
  }
  double lasting_shift_error(double noise) const;
  /// Whether the excess has grown by at least `min_shift` and has stayed so for long. A rank that
  /// was faster than its peers and is now at their level is not a straggler.
  bool small_change(double min_shift) const {
    return lasting_ > 0 && lasting_ >= min_shift / 2 && lasting_shift() >= min_shift;
  }
  /// The excess of kRecent windows ago, if there is one.
  std::optional<double> oldest() const {
    if (!recent_.full()) return std::nullopt;
    return static_cast<double>(recent_.oldest());
  }
  /// The spread of the member's own windows, without the last kRecent; 0 while there are too few.
  double own_noise() const;
  size_t recent() const { return recent_.size(); }
  uint32_t windows() const { return windows_; }
  /// Of the last `windows`, at most WindowHistory::kCapacity: windows in which the member was later
  /// than its peers.
  uint32_t late_count(uint32_t windows) const { return late_.Count(windows); }
  /// Of the last `windows`: windows in which the member was later than in its past.
  uint32_t slower_count(uint32_t windows) const { return slower_.Count(windows); }
  /// Of the last `width` windows: windows in which the member was very late.
  uint32_t very_late_count(size_t level = 0, uint32_t width = WindowHistory::kCapacity) const {
    return very_late_[level].Count(width);
  }
  /// Returns the highest level that `excess` reaches, counted from 1; 0: none.
  static size_t LevelOf(double excess, double very_late_min);

 private:
  void Learn(double excess);
  double ErrorOf(double noise, size_t windows) const;

  static constexpr size_t kPastMin = 8;

  Recent<float, kRecent> recent_;
  Recent<float, kLong> before_;  // after `recent_`: a change is detected before it is learned
  /// The first windows, and later some of the windows that left `before_` while the member was as
  /// usual. A slowdown is not learned.
  Recent<float, 32> past_;
  float usual_ = 0;  // median of past_
  double lasting_ = 0;
  WindowHistory late_;
  WindowHistory slower_;
  std::array<WindowHistory, kLevels> very_late_;
  uint32_t windows_ = 0;
};

}  // namespace holdfast::detect
