#include "coordinator/detect/straggler.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>

#include "coordinator/detect/criteria.h"
#include "coordinator/detect/evidence.h"

namespace holdfast::detect {
namespace {

constexpr size_t kTrackMin = 10;   // windows needed to know a member's lasting excess
constexpr size_t kKindShare = 64;  // one rank in this many may be similar by chance
/// With fewer other ranks than this, the usual spread of lasting differences between healthy ranks
/// does not show. A rank that was always late then counts as a straggler only if it is far behind:
/// it may only be of a slower kind.
constexpr size_t kFewAlways = 24;
constexpr double kBusyMin = 0.45;   // of a window
constexpr double kPairSpreads = 3;  // usual differences of pairs that the excess must exceed
constexpr double kPairNoise = 3.5;  // times the noise of a window that a change must exceed
// Times the least z, while transfers are slow. A pair has no other rank whose work overlaps as
// much.
constexpr double kUnstableFactor = 2;
constexpr double kUnstablePairFactor = 4;
constexpr double kLateBeforeFactor = 2;    // times the least z, for a rank that was late before
constexpr double kSamePaceFactor = 1.5;    // likewise, if iterations are not longer than before
constexpr double kSmallShareMax = 0.15;    // of a window: a larger change meets another criterion
constexpr double kSmallNsMin = 60e9;       // a small change among few members has lasted this long
constexpr double kCorrectionShare = 0.35;  // of the time subtracted for more work: it may be wrong
/// An iteration that became longer by more than this many times a rank's change has another cause.
constexpr double kUnexplainedFactor = 3;

std::string_view RoleName(CommunicatorRole role) {
  static constexpr std::string_view kNames[] = {"", "data-parallel ", "tensor-parallel ",
                                                "pipeline ", "expert-parallel "};
  return kNames[static_cast<size_t>(role)];
}

/// One member of a communicator, or a rank and its steps.
struct Member {
  Index comm = kNone;  // kNone: steps
  const Lateness& lateness;
  const Track& track;
  const RoleBaseline& baseline;
  CommClass of;
  uint32_t rank = 0;
  uint32_t position = 0;
  /// In a ring, a rank computes while its sends wait for slow neighbours. Its own time then shows
  /// only a part of what it has in common with them.
  bool ring = false;
  /// A pair or a triple is measured against its fastest member: the spreads of two members add up.
  double few = 1;
  double correction = 0;  // for different work, as a share of the window
};

/// The criteria that a member meets.
struct Finding {
  double late_z = 0;  // 0 if it does not meet the criterion
  double slower_z = 0;
  double small_z = 0;
  double clear_z = 0;
  std::optional<FrequentStalls> stalls;
  double z() const { return std::max({late_z, slower_z, small_z, clear_z}); }
  bool lasts() const { return z() > 0; }
};

class StragglerFinder {
 public:
  explicit StragglerFinder(const StragglerInput& input)
      : input_(input), options_(input.options), table_(input.table) {}

  std::vector<Verdict> Run();

 private:
  /// The lasting lateness of a rank.
  struct LastingExcess {
    uint32_t rank = 0;
    double excess = 0;
  };

  Member MemberOf(Index comm, uint32_t position) const;
  std::optional<Verdict> Judge(Index comm, uint32_t position);
  Finding Examine(const Member& member);
  Verdict Describe(const Member& member, const Finding& finding) const;
  std::string PlaceOf(const Member& member) const;
  std::string Excess(const Member& member, double share, std::string_view than, uint32_t count,
                     double z) const;
  const std::vector<LastingExcess>& LastingExcesses(const CommClass& of);
  std::vector<LastingExcess> ExcessesInRing(const Member& member) const;
  double BusyOf(const CommClass& of) const;
  double LaterThanPeers(const Member& member, bool always);
  double ClearlyLate(const Member& member);
  double SmallZMin(const Member& member) const;
  bool HasOtherCause(double change_ns) const;
  bool MayHaveNoEffect(const Member& member) const;
  bool IsInherited(uint32_t rank, const std::set<std::pair<Index, uint32_t>>& places) const;

  const StragglerInput& input_;
  const DetectorOptions& options_;
  const Table& table_;
  std::map<CommClass, std::vector<LastingExcess>> lasting_;
};

const std::vector<StragglerFinder::LastingExcess>& StragglerFinder::LastingExcesses(
    const CommClass& of) {
  const auto [found, first] = lasting_.try_emplace(of);
  std::vector<LastingExcess>& lasting = found->second;
  if (!first) return lasting;
  const auto add = [&lasting](const Lateness& lateness, std::span<const uint32_t> members) {
    for (uint32_t position = 0; position < members.size(); ++position) {
      const Track& track = lateness.tracks()[position];
      const double excess = track.excess();
      const size_t least = std::min<size_t>(kTrackMin, lateness.clear_windows());
      if (track.recent() < least || excess == 0) continue;  // 0: the reference itself
      lasting.push_back({members[position], excess});
    }
  };
  if (of == kStepsClass) add(input_.steps->lateness(), input_.all_ranks);
  for (Index comm = 0; comm < input_.watches.size(); ++comm) {
    if (!input_.watches[comm] || ClassOf(comm, input_.watches, table_) != of) continue;
    add(input_.watches[comm]->lateness, table_.comm(comm).members);
  }
  return lasting;
}

/// Returns how late the members of the ring are by their waits. Their own times do not show it.
std::vector<StragglerFinder::LastingExcess> StragglerFinder::ExcessesInRing(
    const Member& member) const {
  const std::vector<uint32_t>& members = table_.comm(member.comm).members;
  const std::vector<double> shares = input_.watches[member.comm]->ring.SharesOf(member.position);
  std::vector<LastingExcess> excesses;
  for (size_t i = 0; i < shares.size(); ++i) {
    excesses.push_back({members[i], shares[i] * member.track.excess()});
  }
  return excesses;
}

/// Returns the share of a window that is own time of the usual member of the class. If some members
/// are blocked for most of the time, operations run while they compute, as sends of interleaved
/// stages do. Their own time is then not all of the time in which they compute, so that healthy
/// members differ, and the share counts as 1.
double StragglerFinder::BusyOf(const CommClass& of) const {
  if (of == kStepsClass) return 1;
  double least = 1;
  for (Index comm = 0; comm < input_.watches.size(); ++comm) {
    if (!input_.watches[comm] || ClassOf(comm, input_.watches, table_) != of) continue;
    least = std::min(least, input_.watches[comm]->lateness.busy());
  }
  return least < kBusyMin ? 1 : least;
}

/// Returns the z-score if the rank is later than the spread of the other ranks explains, else 0. A
/// rank that was always late is a straggler only if hardly any other rank is similar. Otherwise
/// these ranks form a kind of their own, for example with older GPUs.
double StragglerFinder::LaterThanPeers(const Member& member, bool always) {
  const double excess = member.track.excess();
  const double busy = member.ring ? 1 : BusyOf(member.of);
  const double of_own = excess / busy;
  std::vector<double> others;
  std::vector<double> others_of_own;
  std::set<uint32_t> similar;
  // In a ring, the own time of a slow neighbour may not show.
  const bool by_waits = always && member.ring;
  const auto excesses = by_waits ? ExcessesInRing(member) : LastingExcesses(member.of);
  if (by_waits && excesses.empty()) return 0;
  for (const LastingExcess& other : excesses) {
    if (other.rank == member.rank) continue;
    others.push_back(std::abs(other.excess));
    others_of_own.push_back(std::abs(other.excess) / busy);
    if (other.excess >= kSimilarShare * excess) similar.insert(other.rank);
  }
  if (always && others.size() < kFewAlways) {
    if (!IsFarBehind(of_own, others_of_own, member.few)) return 0;
    if (member.few > 1 && excess < kPairSpreads * member.baseline.spread) return 0;
  }
  // A pair waits for other groups more than it computes, so a share of its window would hide it.
  const double spread = LastingSpread(member.few > 1 ? others_of_own : others);
  const double z = 0.6745 * (member.few > 1 ? of_own : excess) / (member.few * spread);
  if (z <= options_.z_min) return 0;
  if (always) return similar.size() <= others.size() / kKindShare ? z : 0;
  // A rank that was not always late has changed. The change must exceed noise that lasts for a
  // while.
  const bool changed =
      !member.track.knows_past() || ChangeZ(member.track, member.baseline) > options_.z_min;
  return changed ? z : 0;
}

/// Returns the z-score if the member was clearly late in each of the last windows, else 0. Windows
/// are long if operations are rare. Then many windows take too long, and each of them averages over
/// much work. A single pause of a rank is in one or two windows.
double StragglerFinder::ClearlyLate(const Member& member) {
  const auto clear = member.lateness.ClearlyLate(member.track);
  if (member.ring || !clear) return 0;
  const double least = clear->least;
  std::vector<double> others;
  bool similar = false;
  for (const LastingExcess& other : LastingExcesses(member.of)) {
    if (other.rank == member.rank) continue;
    others.push_back(std::abs(other.excess));
    similar |= other.excess >= kSimilarShare * least;
  }
  // It may be of a slower kind.
  const bool changed = member.track.knows_past() && !WasAlwaysLate(member.track, least);
  if (similar && !changed) return 0;
  const double noise = std::max(member.baseline.spread, member.baseline.noise);
  return least / std::max(member.few * LastingSpread(others) / 0.6745,
                          kMedianError * noise / std::sqrt(clear->windows));
}

/// Whether iterations are longer than before, and a rank that needs `change_ns` more time of its
/// own does not explain it. Slow transfers change how computing and operations overlap.
bool StragglerFinder::HasOtherCause(double change_ns) const {
  const auto shift = input_.pace.shift();
  return shift && shift->after_ns - shift->before_ns > kUnexplainedFactor * change_ns;
}

/// Whether the member is in a ring of different GPUs whose iterations are not longer than before.
/// The own time of its members changes whenever another one becomes the slowest.
bool StragglerFinder::MayHaveNoEffect(const Member& member) const {
  return member.ring && input_.pace.iteration_ns() > 0 && !input_.pace.shift() &&
         input_.watches[member.comm]->ring.differs();
}

/// Returns the least z-score of a small lasting change. Among few members, a disturbance of one may
/// last for many windows, and the estimate of unequal work may drift.
double StragglerFinder::SmallZMin(const Member& member) const {
  const Track& track = member.track;
  if (member.lateness.many()) return options_.small_z_min;
  const bool corrected = track.lasting_shift() < kCorrectionShare * member.correction;
  const double lasted_ns = (Track::kRecent + Track::kLong) * member.lateness.window_ns();
  const bool large = track.lasting_shift() > kSmallShareMax;
  if (corrected || large || lasted_ns < kSmallNsMin) return std::numeric_limits<double>::infinity();
  const bool late_before = track.usual() >= kSimilarShare * track.lasting();
  return options_.small_z_min * (late_before ? kLateBeforeFactor : 1) *
         (input_.pace.shift() ? 1 : kSamePaceFactor);
}

/// `comm`: kNone for the steps.
Member StragglerFinder::MemberOf(Index comm, uint32_t position) const {
  const bool steps = comm == kNone;
  const Lateness& lateness = steps ? input_.steps->lateness() : input_.watches[comm]->lateness;
  const std::span<const uint32_t> members =
      steps ? input_.all_ranks : std::span<const uint32_t>(table_.comm(comm).members);
  const CommClass of = steps ? kStepsClass : ClassOf(comm, input_.watches, table_);
  return {.comm = comm,
          .lateness = lateness,
          .track = lateness.tracks()[position],
          .baseline = input_.baselines.at(of),
          .of = of,
          .rank = members[position],
          .position = position,
          .ring = !steps && table_.comm(comm).pairwise,
          .few = members.size() < 4 ? std::sqrt(2.0) : 1,
          .correction = lateness.correction(position)};
}

std::optional<Verdict> StragglerFinder::Judge(Index comm, uint32_t position) {
  const Member member = MemberOf(comm, position);
  const Finding finding = Examine(member);
  if (!finding.lasts() && !finding.stalls) return std::nullopt;
  return Describe(member, finding);
}

Finding StragglerFinder::Examine(const Member& member) {
  const Track& track = member.track;
  const Lateness& lateness = member.lateness;
  const bool equal_work = lateness.equal_work();
  const bool late = equal_work && track.late_count(options_.windows) >= options_.windows_late;
  const bool slower = track.slower_count(options_.windows) >= options_.windows_late;
  const bool small = track.small_change(lateness.small_change_min());
  Finding finding;
  const bool no_effect = MayHaveNoEffect(member);
  if (equal_work && !input_.transfers_unstable && !no_effect) {
    finding.stalls = FindFrequentStalls(track, lateness.tracks(), member.baseline, table_.world());
  }
  const double clear_z = equal_work ? ClearlyLate(member) : 0;
  if (!late && !slower && !small && clear_z == 0) return finding;
  const bool unstable = input_.transfers_unstable ||
                        HasOtherCause(std::max(track.shift(), 0.0) * lateness.window_ns());
  const double doubt = !unstable ? 1 : member.few > 1 ? kUnstablePairFactor : kUnstableFactor;
  // Among thousands of windows, noise exceeds the limit in some, but not in consecutive sets.
  // Without the confirmation of twice as many windows, z must be twice as high.
  const auto enough = [&](double z, double z_min, uint32_t count_of_twice) {
    const bool confirmed = count_of_twice >= 2 * options_.windows_late;
    return z > doubt * (confirmed ? z_min : kImmediateFactor * z_min);
  };
  // A disturbance of the only reference lasts for many windows, which are then not independent.
  const auto exceeds_noise = [&](double share) {
    return member.few == 1 || share >= kPairNoise * member.baseline.noise;
  };
  const bool drift = IsSharedDrift(track, lateness.tracks());
  const bool always = WasAlwaysLate(track, track.excess());
  const bool shared = IsSharedChange(track, lateness.tracks());
  // While transfers are slow, and if many members have changed, the cause is not the rank.
  const bool common = IsCommonChange(track, lateness.tracks()) || (unstable && shared);
  // The correction of different work is an estimate.
  const bool corrected = track.excess() < kCorrectionShare * member.correction;
  if (late && !corrected && (always || (!common && !no_effect && exceeds_noise(track.excess())))) {
    const double z = LaterThanPeers(member, always || drift);
    if (enough(z, options_.z_min, track.late_count(2 * options_.windows))) finding.late_z = z;
  }
  const bool own = !common && !no_effect && (equal_work || member.ring || !shared);
  if (slower && !drift && own && exceeds_noise(track.shift())) {
    const double z = ChangeZ(track, member.baseline);
    const uint32_t count = track.slower_count(2 * options_.windows);
    // How much of a rank's lateness shows depends on the overlap and changes over time.
    const bool late_before = track.usual() >= kSimilarShare * track.excess();
    const double z_min = options_.slower_z_min * (late_before ? kLateBeforeFactor : 1);
    if (enough(z, z_min, count)) finding.slower_z = z;
  }
  if (small && (lateness.many() || (own && !shared))) {
    const double z = LongChangeZ(track, member.baseline);
    if (z > doubt * SmallZMin(member)) finding.small_z = z;
  }
  if (clear_z > doubt * kImmediateFactor * options_.z_min) finding.clear_z = clear_z;
  return finding;
}

std::string StragglerFinder::PlaceOf(const Member& member) const {
  if (member.comm == kNone) return "its steps";
  const CommInfo& info = table_.comm(member.comm);
  return fmt::format("the {}communicator {:x}", RoleName(info.role), info.id.value);
}

/// Describes a lasting excess.
std::string StragglerFinder::Excess(const Member& member, double share, std::string_view than,
                                    uint32_t count, double z) const {
  const double window_ns = member.lateness.window_ns();
  return fmt::format(
      "rank {} needed {} ({:.1f} % of {}) more own time than {} in {}; late in {} of the "
      "last {} windows, z = {:.0f}",
      member.rank, InSeconds(static_cast<uint64_t>(share * window_ns)), share * 100,
      InSeconds(static_cast<uint64_t>(window_ns)), than, PlaceOf(member), count,
      member.track.recent(), z);
}

Verdict StragglerFinder::Describe(const Member& member, const Finding& finding) const {
  const Track& track = member.track;
  const double z = finding.z();
  Verdict verdict{.fault = FaultClass::kComputeSlow,
                  .ranks = {Rank{member.rank}},
                  .edge = {},
                  .nodes = {table_.NodeNameOf(member.rank)},
                  .confidence = finding.lasts() ? std::min(0.95, 0.6 + z / 50) : 0.7,
                  .action = Action::kAlert,
                  .evidence = {}};
  if (finding.late_z > 0) {
    verdict.evidence.push_back(Excess(member, track.excess(), "its peers",
                                      track.late_count(options_.windows), finding.late_z));
  }
  if (finding.slower_z > 0) {
    verdict.evidence.push_back(Excess(member, track.shift(), "before, relative to its peers,",
                                      track.slower_count(options_.windows), finding.slower_z));
  }
  if (verdict.evidence.empty() && finding.small_z > 0) {
    verdict.evidence.push_back(fmt::format(
        "rank {} needed {:.1f} % of {} more own time than before, relative to its peers, in "
        "{}, in the last {} windows and in the {} windows before, z = {:.0f}",
        member.rank, track.lasting_shift() * 100,
        InSeconds(static_cast<uint64_t>(member.lateness.window_ns())), PlaceOf(member),
        Track::kRecent, Track::kLong, finding.small_z));
  }
  if (verdict.evidence.empty() && finding.clear_z > 0) {
    const auto clear = member.lateness.ClearlyLate(track).value_or(Lateness::Clear());
    verdict.evidence.push_back(fmt::format(
        "rank {} needed at least {:.1f} % of {} more own time than its peers in {}, in each "
        "of the last {} windows, z = {:.0f}",
        member.rank, clear.least * 100,
        InSeconds(static_cast<uint64_t>(member.lateness.window_ns())), PlaceOf(member),
        clear.windows, finding.clear_z));
  }
  if (!finding.lasts()) {
    verdict.evidence.push_back(fmt::format(
        "rank {} was very late in {} of the last {} windows of {}; of all ranks, {} of {} windows "
        "were as late",
        member.rank, finding.stalls->very_late, finding.stalls->windows, PlaceOf(member),
        finding.stalls->all_very_late, member.baseline.windows));
  }
  if (member.lateness.by_waits_only()) {
    verdict.evidence.emplace_back("computed from waits alone: blocked time is not reported");
  }
  return verdict;
}

/// Whether a rank that is late in some communicator may be late since another rank made it wait in
/// another communicator. `places`: communicators and the ranks that are late there.
bool StragglerFinder::IsInherited(uint32_t rank,
                                  const std::set<std::pair<Index, uint32_t>>& places) const {
  const auto& memberships = table_.rank(rank).memberships;
  return std::any_of(memberships.begin(), memberships.end(), [&](const Membership& membership) {
    return places.count({membership.comm, rank}) == 0 &&
           std::any_of(places.begin(), places.end(),
                       [&](const auto& place) { return place.first == membership.comm; });
  });
}

std::vector<Verdict> StragglerFinder::Run() {
  std::map<uint32_t, Verdict> late;             // by rank, the verdict of highest confidence
  std::set<std::pair<Index, uint32_t>> places;  // communicator and rank
  std::set<uint32_t> by_waits;
  for (Index comm = 0; comm < input_.watches.size(); ++comm) {
    if (!input_.watches[comm] || !input_.watches[comm]->lateness.suspicious()) continue;
    const CommInfo& info = table_.comm(comm);
    for (uint32_t position = 0; position < info.members.size(); ++position) {
      auto verdict = Judge(comm, position);
      if (!verdict) continue;
      const uint32_t rank = info.members[position];
      places.insert({comm, rank});
      if (input_.watches[comm]->lateness.by_waits_only()) by_waits.insert(rank);
      const auto [at, added] = late.emplace(rank, *verdict);
      if (!added && at->second.confidence < verdict->confidence) at->second = *verdict;
    }
  }
  if (input_.steps != nullptr && input_.steps->lateness().suspicious()) {
    for (const uint32_t rank : input_.all_ranks) {
      if (auto verdict = Judge(kNone, rank)) late.emplace(rank, std::move(*verdict));
    }
  }
  // Waits alone do not show the cause.
  for (const uint32_t rank : by_waits) {
    if (IsInherited(rank, places)) late.erase(rank);
  }
  std::vector<Verdict> verdicts;
  for (auto& [rank, verdict] : late) verdicts.push_back(std::move(verdict));
  return verdicts;
}

}  // namespace

std::vector<Verdict> FindStragglers(const StragglerInput& input) {
  return StragglerFinder(input).Run();
}

}  // namespace holdfast::detect
