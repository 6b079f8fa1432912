#pragma once

#include <optional>
#include <span>

#include "coordinator/detect/lateness.h"

// The statistical criteria by which the lateness of a member is more than noise.

namespace holdfast::detect {

/// Of a rank's excess: the other rank is of the same kind. A rank that computes while an operation
/// waits for a slower rank shows only a part of its excess.
inline constexpr double kSimilarShare = 0.35;
/// Times the least z, for a verdict from one set of windows.
inline constexpr double kImmediateFactor = 2;

/// Whether the member was about as late in its past.
bool WasAlwaysLate(const Track& track, double excess);

/// Returns the z-score of the member's change, relative to the usual changes of the role's members
/// and to noise.
double ChangeZ(const Track& track, const RoleBaseline& baseline);

/// Returns the same for a long-lasting change, whose longer average has less noise.
double LongChangeZ(const Track& track, const RoleBaseline& baseline);

/// Returns the robust spread of the ranks' lasting excesses over their peers. Reorders `excesses`.
/// For a small number of ranks, the result is a weighted mean with the usual spread.
double LastingSpread(std::span<double> excesses);

/// Whether a rank that was always late is far behind the few other ranks. `excess`, `others`:
/// shares of the own time, in which GPUs of one type differ. The standard deviation of the others
/// counts, to which each of them contributes, averaged with the usual one. `few`: above 1 if the
/// ranks form pairs or triples. The others are then compared with other references, and the excess
/// itself must be large.
bool IsFarBehind(double excess, std::span<const double> others, double few);

/// More very late windows than chance explains.
struct FrequentStalls {
  uint32_t very_late = 0;      // windows in which the member was very late
  uint32_t windows = 0;        // windows examined
  uint64_t all_very_late = 0;  // of all members, in all windows
};
/// Returns the member's stalls if they are more frequent than chance explains for any of `tracks`
/// ranks, else nullopt. Tests several lengths of time and several levels of lateness. `members`:
/// all tracks of the member's communicator.
std::optional<FrequentStalls> FindFrequentStalls(const Track& track, std::span<const Track> members,
                                                 const RoleBaseline& baseline, size_t tracks);

/// Whether another member shows at least half of the member's change against its own past. Where
/// members have unequal work, the change is then that of their stage or of the reference.
/// `members`: all tracks of the member's communicator.
bool IsSharedChange(const Track& track, std::span<const Track> members);

/// Whether at least two other members, and one in four members or 16, show at least half of the
/// member's change. It then has a common cause.
bool IsCommonChange(const Track& track, std::span<const Track> members);

/// Whether the member was late before, and another member shows at least half of its change.
/// Members with older GPUs have this in common: how much of their lateness shows depends on how
/// much of a lag carries over, which is an estimate and changes over time.
bool IsSharedDrift(const Track& track, std::span<const Track> members);

}  // namespace holdfast::detect
