#include "coordinator/detect/period.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "coordinator/detect/robust.h"

namespace holdfast::detect {
namespace {

constexpr uint64_t kUpdateEvery = 64;  // operations
constexpr uint32_t kUnknownMin = 24;   // operations, if the duration of an iteration is unknown
constexpr uint32_t kPeriodsMin = 3;    // that the last operations must hold, in this case
// An iteration is about this long.
constexpr double kShortest = 0.75;
constexpr double kLongest = 1.35;
constexpr double kPauseNsMin = 1e3;
constexpr double kClip = 1;  // of a difference of logarithms: one long stall does not count more
// A multiple of the period is as good as the period, apart from noise.
constexpr double kAlikeFactor = 1.3;
constexpr double kAlike = 0.01;
constexpr uint32_t kDurations = 32;  // examined for a median

}  // namespace

void Period::Add(const GatheredOperation& operation, double iteration_ns) {
  double pause_ns = 0;
  const bool follows = operation.sequence == next_ && added_ > 0;
  const size_t members = std::min(ends_ns_.size(), operation.samples.size());
  for (size_t i = 0; i < members; ++i) {
    const Sample& sample = operation.samples[i];
    const uint64_t end_ns = sample.present() ? sample.ended_ns : 0;
    if (pause_ns == 0 && ends_ns_[i] != 0 && end_ns > ends_ns_[i]) {
      pause_ns = static_cast<double>(end_ns - ends_ns_[i]);
    }
    ends_ns_[i] = end_ns;
  }
  next_ = operation.sequence + 1;
  const double before_ns = added_ == 0 ? 0 : Last(0).at_ns;
  ++added_;
  entries_[(added_ - 1) % kCapacity] = {
      .at_ns = before_ns + pause_ns,
      .logarithm = static_cast<float>(std::log(std::max(pause_ns, kPauseNsMin))),
      .known = follows && pause_ns > 0};
  if (added_ < update_at_) return;
  update_at_ += std::min(added_, kUpdateEvery);
  Update(iteration_ns);
}

/// Returns the median duration of `operations` operations among the last `size`; 0 if unknown.
double Period::DurationOf(uint32_t operations, uint32_t size) const {
  std::vector<double> durations;
  const uint32_t step = std::max(1U, (size - operations) / kDurations);
  for (uint32_t back = 0; back + operations < size; back += step) {
    durations.push_back(Last(back).at_ns - Last(back + operations).at_ns);
  }
  return LowerMedian(std::span<double>(durations));
}

/// Returns how much a pause differs on average from the pause `operations` before.
double Period::DifferenceAfter(uint32_t operations, uint32_t size) const {
  double sum = 0;
  uint32_t count = 0;
  for (uint32_t back = 0; back + operations < size; ++back) {
    const Entry& late = Last(back);
    const Entry& early = Last(back + operations);
    if (!late.known || !early.known) continue;
    sum += std::min(kClip, std::abs(static_cast<double>(late.logarithm - early.logarithm)));
    ++count;
  }
  return count == 0 ? std::numeric_limits<double>::infinity() : sum / count;
}

void Period::Update(double iteration_ns) {
  const auto size = static_cast<uint32_t>(std::min<uint64_t>(added_, kCapacity));
  const bool known = iteration_ns > 0;
  if (!known && size < kUnknownMin) return;
  const uint32_t most = known ? size / 2 : size / kPeriodsMin;
  std::vector<double> differences;  // of the candidates
  uint32_t first = 1;
  bool complete = !known;  // whether the longest candidates were examined, too
  for (uint32_t operations = 1; operations <= most; ++operations) {
    const double duration_ns = known ? DurationOf(operations, size) : 0;
    // Operations that are more than an iteration apart hold whole iterations.
    const bool rare = known && operations == 1 && duration_ns >= kShortest * iteration_ns;
    if (rare) {
      operations_ = 1;
      duration_ns_ = duration_ns;
      return;
    }
    if (known && duration_ns < kShortest * iteration_ns) {
      first = operations + 1;
      continue;
    }
    if (known && duration_ns > kLongest * iteration_ns) {
      complete = true;
      break;
    }
    differences.push_back(DifferenceAfter(operations, size));
  }
  if (!complete || differences.empty()) return;
  const double least = *std::min_element(differences.begin(), differences.end());
  if (std::isinf(least)) return;
  const double enough = known ? least : kAlikeFactor * least + kAlike;
  const auto best = std::find_if(differences.begin(), differences.end(),
                                 [&](double difference) { return difference <= enough; });
  operations_ = first + static_cast<uint32_t>(best - differences.begin());
  duration_ns_ = DurationOf(operations_, size);
}

}  // namespace holdfast::detect
