#include "coordinator/detect/criteria.h"

#include <algorithm>

namespace holdfast::detect {
namespace {

// Lasting lateness.
constexpr double kLastingSpreadMin = 0.003;  // robust spread of lasting excesses
/// The usual spread of lasting excesses. A few members may show a smaller one, so the usual spread
/// is averaged in, with the weight of kLastingSpreadWeight members.
constexpr double kLastingSpreadUsual = 0.0045;
constexpr double kLastingSpreadWeight = 8;
constexpr double kAlwaysShare = 0.5;  // of a rank's excess, in its past: it was always that late
constexpr double kSharedShare = 0.5;  // of a rank's change: another member has changed likewise
constexpr size_t kCommonMin = 2;      // other members with the same change: it has one cause
constexpr size_t kCommonMax = 16;     // as many are enough in any communicator
constexpr size_t kCommonShare = 4;    // and at least one in four members
constexpr size_t kFewOthers = 6;      // fewer have no quantiles
constexpr double kFewAlwaysMin = 0.085;
constexpr double kFewAlwaysZ = 7;
constexpr double kPairAlwaysZ = 5;
constexpr double kLastingDeviation = 1.4826 * kLastingSpreadUsual;
constexpr double kShiftMin = 0.0015;                // least spread of members' changes
constexpr double kLongShiftMin = 0.0007;            // likewise, of long-lasting changes
constexpr double kUpperToMedian = 0.6745 / 1.2816;  // median of |normal| over its 80th percentile

// Frequent stalls.
constexpr uint32_t kVeryLateMin = 5;   // windows
constexpr double kVeryLateTimes = 3;   // times the expected number, to run the test at all
constexpr double kVeryLateUnseen = 3;  // upper bound at 95 % where no event was seen
constexpr uint32_t kVeryLateWidths[] = {16, 32, 64, 128};
constexpr uint32_t kStallsPerBurst = 2;
constexpr double kStallsAtMost = 0.6;  // of the windows: more are lateness, which is judged as such
constexpr double kFalsePositiveRate = 1e-6;  // upper bound over all ranks

}  // namespace

bool WasAlwaysLate(const Track& track, double excess) {
  return track.knows_past() && track.usual() >= kAlwaysShare * excess;
}

double ChangeZ(const Track& track, const RoleBaseline& baseline) {
  const double usual = 1.4826 * std::max(baseline.shifts.Median(), kShiftMin);
  const double noise = std::max(baseline.noise, track.own_noise());
  return track.shift() / std::max(usual, track.shift_error(noise));
}

double LongChangeZ(const Track& track, const RoleBaseline& baseline) {
  const double usual = 1.4826 * std::max(baseline.lasting_shifts.Median(), kLongShiftMin);
  const double noise = std::max(baseline.noise, track.own_noise());
  return track.lasting_shift() / std::max(usual, track.lasting_shift_error(noise));
}

bool IsFarBehind(double excess, std::span<const double> others, double few) {
  if (few > 1 && excess < kFewAlwaysMin) return false;
  double squares = kLastingSpreadWeight * kLastingDeviation * kLastingDeviation;
  for (const double other : others) squares += other * other;
  const double weight = static_cast<double>(others.size()) + kLastingSpreadWeight;
  return excess > (few > 1 ? kPairAlwaysZ : kFewAlwaysZ) * std::sqrt(squares / weight);
}

double LastingSpread(std::span<double> excesses) {
  const auto members = static_cast<double>(excesses.size());
  double shown = LowerMedian(excesses);
  if (excesses.size() >= kFewOthers) {
    shown = std::max(shown, Quantile(excesses, 0.8) * kUpperToMedian);
  }
  const double weighted = (members * shown + kLastingSpreadWeight * kLastingSpreadUsual) /
                          (members + kLastingSpreadWeight);
  return std::max({weighted, shown, kLastingSpreadMin});
}

namespace {

/// Returns the rate of very late windows of the other members of a communicator.
double StallRate(std::span<const Track> members, const Track& but, size_t level) {
  uint64_t very_late = 0;
  uint64_t windows = 0;
  for (const Track& member : members) {
    if (&member == &but) continue;
    very_late += member.very_late_count(level);
    windows += std::min(member.windows(), WindowHistory::kCapacity);
  }
  return windows == 0 ? 0 : static_cast<double>(very_late) / static_cast<double>(windows);
}

/// Whether another member was very late in at least half as many windows. Members with older GPUs
/// have this in common.
bool AnotherStalls(std::span<const Track> members, const Track& track, size_t level) {
  return std::any_of(members.begin(), members.end(), [&](const Track& member) {
    return &member != &track &&
           member.very_late_count(level) >= kSharedShare * track.very_late_count(level);
  });
}

}  // namespace

std::optional<FrequentStalls> FindFrequentStalls(const Track& track, std::span<const Track> members,
                                                 const RoleBaseline& baseline, size_t tracks) {
  if (track.very_late_count() < kVeryLateMin) return std::nullopt;
  constexpr double kTests = Track::kLevels * std::size(kVeryLateWidths);
  // The bound on false positives is shared by all tests of all ranks.
  const double p_max = kFalsePositiveRate / (kTests * static_cast<double>(tracks));
  for (size_t level = 0; level < Track::kLevels; ++level) {
    const uint64_t own = track.very_late_count(level);
    const uint64_t windows = std::min(track.windows(), WindowHistory::kCapacity);
    const auto others =
        static_cast<double>(baseline.very_late[level] - std::min(baseline.very_late[level], own));
    const double p_role =
        (others + kVeryLateUnseen) / static_cast<double>(baseline.windows - windows + 1);
    // Stalls come in bursts: two of them count as one independent event.
    const auto exceeds = [&](double p, uint32_t very_late, uint32_t examined) {
      return very_late >= kVeryLateTimes * p * examined &&
             BinomialTail(very_late / kStallsPerBurst, examined / kStallsPerBurst, p) < p_max;
    };
    for (const uint32_t width : kVeryLateWidths) {
      const uint32_t very_late = track.very_late_count(level, width);
      const uint32_t examined = std::min(width, track.windows());
      if (very_late < kVeryLateMin || very_late > kStallsAtMost * examined) continue;
      // Few members exceed the rate of their role. Only for these, all members are examined.
      if (!exceeds(p_role, very_late, examined)) continue;
      if (AnotherStalls(members, track, level)) continue;
      if (exceeds(std::max(p_role, StallRate(members, track, level)), very_late, examined)) {
        return FrequentStalls{.very_late = very_late,
                              .windows = examined,
                              .all_very_late = baseline.very_late[level]};
      }
    }
  }
  return std::nullopt;
}

bool IsSharedDrift(const Track& track, std::span<const Track> members) {
  return track.knows_past() && track.usual() >= kSimilarShare * track.excess() &&
         IsSharedChange(track, members);
}

namespace {

/// Whether at least `least` other members show at least half of the member's change.
bool HasAlike(const Track& track, std::span<const Track> members, size_t least) {
  return std::any_of(members.begin(), members.end(), [&](const Track& member) {
    const bool alike = &member != &track && member.shift() >= kSharedShare * track.shift();
    return alike && --least == 0;
  });
}

}  // namespace

bool IsSharedChange(const Track& track, std::span<const Track> members) {
  return HasAlike(track, members, 1);
}

bool IsCommonChange(const Track& track, std::span<const Track> members) {
  return track.shift() > 0 &&
         HasAlike(track, members,
                  std::clamp(members.size() / kCommonShare, kCommonMin, kCommonMax));
}

}  // namespace holdfast::detect
