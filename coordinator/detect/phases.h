#pragma once

#include <array>
#include <bit>

#include "base/clock.h"
#include "coordinator/detect/records.h"
#include "coordinator/detect/robust.h"

// The usual lengths of marked phases, and the length beyond which a phase no longer excuses a rank.

namespace holdfast::detect {

/// Phases in which a rank makes no steps, or makes them more slowly than usual.
inline constexpr uint8_t kPhasesWithoutSteps =
    static_cast<uint8_t>(Phase::kInit) | static_cast<uint8_t>(Phase::kCompile) |
    static_cast<uint8_t>(Phase::kCheckpoint) | static_cast<uint8_t>(Phase::kEvaluation);

class PhaseLengths {
 public:
  /// Records that a rank left the phases of `bits`, which lasted `length` together.
  void Add(uint8_t bits, Clock::Duration length) {
    ForEach(bits, [&](size_t kind) { lengths_[kind].Add(static_cast<double>(length.count())); });
  }
  /// Whether a phase of `bits` has ended before, so that a usual length is known.
  bool Known(uint8_t bits) const {
    bool known = false;
    ForEach(bits, [&](size_t kind) { known |= lengths_[kind].size() != 0; });
    return known;
  }
  /// Returns how long phases of `bits` excuse a rank. The limit is ten times their median length;
  /// once three have ended, at most four times the longest, and at least 50 s. It is at least a
  /// minute before, and ten minutes if none has ended.
  Clock::Duration Limit(uint8_t bits) const {
    double limit = 0;
    ForEach(bits, [&](size_t kind) { limit = std::max(limit, LimitOf(lengths_[kind])); });
    return Clock::Duration(static_cast<int64_t>(limit));
  }

 private:
  using Lengths = Recent<double, 32>;

  static double LimitOf(const Lengths& lengths) {
    constexpr double kMin = 50e9;  // ns
    constexpr double kMinOfFew = 60e9;
    constexpr double kUnknown = 600e9;
    constexpr size_t kSome = 3;
    if (lengths.size() == 0) return kUnknown;
    const double limit = 10 * lengths.Median();
    if (lengths.size() < kSome) return std::max(limit, kMinOfFew);
    const auto values = lengths.values();
    return std::max(kMin, std::min(limit, 4 * *std::max_element(values.begin(), values.end())));
  }
  template <typename Visit>
  static void ForEach(uint8_t bits, Visit visit) {
    for (size_t kind = 0; kind < 8; ++kind) {
      if ((bits >> kind & 1U) != 0) visit(kind);
    }
  }

  std::array<Lengths, 8> lengths_;  // by the phase's bit
};

}  // namespace holdfast::detect
