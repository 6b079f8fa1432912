#include "coordinator/detect/step_ends.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "coordinator/detect/criteria.h"
#include "coordinator/detect/evidence.h"
#include "coordinator/detect/phases.h"

namespace holdfast::detect {
namespace {

constexpr double kTogether = 0.25;  // of an iteration: ranks that wait for each other end as close
constexpr uint32_t kApartMax = 8;   // consecutive steps: the ranks do not wait for each other
constexpr double kNoiseNsMin = 50e3;  // the end of a step is not known more exactly
/// Of the time by which iterations are longer. The work after the last common operation is at least
/// this share of an iteration. A smaller delay does not explain the longer iterations.
constexpr double kShareOfLonger = 0.01;

}  // namespace

void StepEnds::Add(const Digest& digest, Index node, const Table& table, double iteration_ns) {
  std::vector<uint32_t> ranks;
  std::vector<double> ends_ns;  // before the digest was taken
  uint64_t least = std::numeric_limits<uint64_t>::max();
  uint64_t most = 0;
  for (const RankState& state : digest.ranks) {
    if (state.rank.value >= table.world() || table.rank(state.rank.value).node != node) continue;
    if ((state.phases & kPhasesWithoutSteps) != 0) return;
    ranks.push_back(state.rank.value);
    ends_ns.push_back(-static_cast<double>(state.since_step_ns));
    least = std::min(least, state.step);
    most = std::max(most, state.step);
  }
  if (ranks.size() < 2 || iteration_ns <= 0) return;
  NodeEnds& known = nodes_[node];
  if (known.ranks != ranks) {
    const size_t count = ranks.size();
    known = {.ranks = std::move(ranks), .tracks = std::vector<Track>(count)};
  }
  if (least != most || most == known.step) return;
  known.step = most;
  const auto [first, last] = std::minmax_element(ends_ns.begin(), ends_ns.end());
  if (*last - *first > kTogether * iteration_ns) {
    if (++known.apart >= kApartMax) std::fill(known.tracks.begin(), known.tracks.end(), Track());
    return;
  }
  known.apart = 0;
  std::vector<double> sorted = ends_ns;
  const double usual_ns = LowerMedian(std::span<double>(sorted));
  constexpr double kNever = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < known.tracks.size(); ++i) {
    Track& track = known.tracks[i];
    const double past_ns = std::max(static_cast<double>(options_.late_ns_min), track.own_noise());
    track.Add(ends_ns[i] - usual_ns,
              {.peers = kNever, .past = past_ns, .very_late = kNever, .small = kNever},
              options_.windows);
  }
}

/// Returns the usual change of a rank against its past. In each node, one rank is the reference of
/// the others.
double StepEnds::UsualShift() const {
  std::vector<double> shifts;
  for (const auto& [node, ends] : nodes_) {
    const size_t first = shifts.size();
    for (const Track& track : ends.tracks) shifts.push_back(std::abs(track.shift()));
    std::iter_swap(
        std::min_element(shifts.begin() + static_cast<std::ptrdiff_t>(first), shifts.end()),
        shifts.end() - 1);
    shifts.pop_back();
  }
  return shifts.size() < 2 ? 0 : 1.4826 * LowerMedian(std::span<double>(shifts));
}

std::vector<Verdict> StepEnds::Find(const Pace::Shift& longer, const Table& table) const {
  const double usual = UsualShift();
  const double least = kShareOfLonger * (longer.after_ns - longer.before_ns);
  std::vector<Verdict> verdicts;
  for (const auto& [node, ends] : nodes_) {
    for (size_t i = 0; i < ends.tracks.size(); ++i) {
      const Track& track = ends.tracks[i];
      const uint32_t late = track.slower_count(options_.windows);
      const bool known = track.windows() >= 2 * Track::kRecent;
      if (!known || late < options_.windows_late || track.shift() < least) continue;
      if (IsCommonChange(track, ends.tracks)) continue;
      const double noise = std::max(track.own_noise(), kNoiseNsMin);
      const double z = track.shift() / std::max(usual, track.shift_error(noise));
      const bool confirmed = track.slower_count(2 * options_.windows) >= 2 * options_.windows_late;
      if (z <= options_.slower_z_min * (confirmed ? 1 : kImmediateFactor)) continue;
      const uint32_t rank = ends.ranks[i];
      verdicts.push_back(
          {.fault = FaultClass::kComputeSlow,
           .ranks = {Rank{rank}},
           .edge = {},
           .nodes = {table.NodeNameOf(rank)},
           .confidence = std::min(0.9, 0.6 + z / 50),
           .action = Action::kAlert,
           .evidence = {fmt::format(
               "rank {} ends its steps {} later than before, relative to the other ranks of its "
               "node, in {} of the last {} steps, z = {:.0f}; their communication is not recorded",
               rank, InSeconds(static_cast<uint64_t>(track.shift())), late, track.recent(), z)}});
    }
  }
  return verdicts;
}

}  // namespace holdfast::detect
