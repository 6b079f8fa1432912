#include "coordinator/detect/track.h"

#include <bit>

namespace holdfast::detect {
namespace {

/// One window in four is learned: the past then spans enough windows to show a gradual slowdown.
constexpr uint32_t kLearnEvery = 4;

}  // namespace

uint32_t WindowHistory::Count(uint32_t width) const {
  const uint64_t low = width >= 64 ? ~uint64_t{0} : (uint64_t{1} << width) - 1;
  const uint64_t high = width <= 64          ? 0
                        : width >= kCapacity ? ~uint64_t{0}
                                             : (uint64_t{1} << (width - 64)) - 1;
  return static_cast<uint32_t>(std::popcount(bits_[0] & low) + std::popcount(bits_[1] & high));
}

size_t Track::LevelOf(double excess, double very_late_min) {
  size_t level = 0;
  for (; level < kLevels && excess >= very_late_min; ++level) very_late_min *= kLevelStep;
  return level;
}

double Track::least(size_t windows) const {
  if (recent_.size() < windows) return 0;
  float least = recent_.Last(0);
  for (size_t back = 1; back < windows; ++back) least = std::min(least, recent_.Last(back));
  return static_cast<double>(least);
}

double Track::shift() const { return knows_past() ? excess() - static_cast<double>(usual_) : 0; }

double Track::ErrorOf(double noise, size_t windows) const {
  if (!knows_past()) return 0;
  return kMedianError * noise *
         std::sqrt(1 / static_cast<double>(windows) + 1 / static_cast<double>(past_.size()));
}

double Track::shift_error(double noise) const { return ErrorOf(noise, recent_.size()); }
double Track::lasting_shift_error(double noise) const { return ErrorOf(noise, kLong); }

double Track::own_noise() const {
  if (before_.size() < kRecent) return 0;
  std::vector<double> values(before_.values().begin(), before_.values().end());
  return 1.4826 * CentreOf(values).mad;
}

void Track::Learn(double excess) {
  past_.Add(static_cast<float>(excess));
  usual_ = past_.Median();
}

size_t Track::Add(double excess, const LatenessThresholds& from, uint32_t windows) {
  // A rank that was faster than its peers and is now at their level is not a straggler.
  const double slower_by = std::min(excess, excess - static_cast<double>(usual_));
  const bool slower = knows_past() && slower_by >= from.past;
  if (!knows_past()) {
    Learn(excess);
  } else if (before_.full() && windows_ % kLearnEvery == 0 && slower_count(windows) * 2 < windows &&
             !small_change(from.small)) {
    Learn(before_.oldest());
  }
  if (recent_.full()) before_.Add(recent_.oldest());
  recent_.Add(static_cast<float>(excess));
  if (before_.full() && windows_ % kRecent == 0) {
    lasting_ = static_cast<double>(std::min(recent_.Median(), before_.Median()));
  }
  late_.Add(excess >= from.peers);
  slower_.Add(slower);
  // A rank that is as late as always has no stalls.
  const size_t reached = LevelOf(knows_past() ? slower_by : excess, from.very_late);
  for (size_t level = 0; level < kLevels; ++level) very_late_[level].Add(level < reached);
  ++windows_;
  return reached;
}

}  // namespace holdfast::detect
