#include "coordinator/detect/leads.h"

#include <algorithm>
#include <cmath>

namespace holdfast::detect {
namespace {

constexpr double kFollow = 1.0 / 32;    // of the usual waits
constexpr double kForget = 1.0 / 4096;  // of what pairs of operations showed
/// A lead that rises from operation to operation is like the one before by half, and all carried.
constexpr double kRising = 2;
constexpr uint64_t kFewOperations = 16;
constexpr double kGapShare = 0.1;  // of the transfer's time: less is no gap
constexpr double kTypicalStep = 0.02;
constexpr double kClip = 4;  // typical deviations: one long stall says nothing of all others

}  // namespace

void Leads::Begin() {
  for (std::vector<double>* leads : {&sums_, &largest_, &in_row_, &rows_}) {
    std::fill(leads->begin(), leads->end(), 0.0);
  }
  for (Kind& kind : kinds_) std::fill(kind.waits.begin(), kind.waits.end(), -1.0);
}

double Leads::carried() const {
  if (operations_ < kFewOperations || alone_ <= 0) return 0;
  return std::clamp(kRising * together_ / alone_, 0.0, 1.0);
}

/// The usual member came to it right from the operation before.
bool Leads::FollowsAtOnce(const Gathered& operation, uint64_t least_ns) {
  std::vector<double> gaps;
  for (size_t i = 0; i < operation.samples.size(); ++i) {
    const Sample& sample = operation.samples[i];
    if (!sample.present()) continue;
    if (stops_[i] != 0) {
      gaps.push_back(static_cast<double>(sample.start_ns) - static_cast<double>(stops_[i]));
    }
    stops_[i] = sample.stop_ns;
  }
  return !gaps.empty() &&
         LowerMedian(std::span<double>(gaps)) < kGapShare * static_cast<double>(least_ns);
}

void Leads::Add(const Gathered& operation) {
  Kind& kind = kinds_[static_cast<size_t>(operation.func)];
  if (kind.waits.empty()) {
    kind.waits.resize(members_, -1.0);
    kind.usual.resize(members_);
  }
  uint64_t least = ~uint64_t{0};
  for (const Sample& sample : operation.samples) {
    if (sample.present()) least = std::min(least, sample.duration_ns());
  }
  scratch_.clear();
  for (const Sample& sample : operation.samples) {
    if (sample.present()) scratch_.push_back(static_cast<double>(sample.duration_ns() - least));
  }
  const double usual = LowerMedian(std::span<double>(scratch_));
  const double most = scratch_.empty() ? 0 : *std::max_element(scratch_.begin(), scratch_.end());
  // Of a pair the lower median is the late one's own.
  const double reference = operation.samples.size() < 4 ? most : usual;
  const bool same_row = FollowsAtOnce(operation, least);
  double together = 0;
  double alone = 0;
  for (size_t i = 0; i < operation.samples.size(); ++i) {
    const Sample& sample = operation.samples[i];
    if (!sample.present()) {
      kind.waits[i] = -1;
      continue;
    }
    const auto wait = static_cast<double>(sample.duration_ns() - least);
    const double lead = reference - wait;
    sums_[i] += lead;
    largest_[i] = std::max(largest_[i], lead);
    if (!same_row) {
      rows_[i] += in_row_[i];
      in_row_[i] = lead;
    }
    in_row_[i] = std::max(in_row_[i], lead);
    if (kind.waits[i] >= 0) {
      const double clip = kClip * typical_;
      const double before = std::clamp(kind.waits[i] - kind.usual[i], -clip, clip);
      together += before * std::clamp(wait - kind.usual[i], -clip, clip);
      alone += before * before;
    }
    const double deviation = std::abs(wait - kind.usual[i]);
    if (typical_ == 0) typical_ = deviation;
    typical_ *= deviation > typical_ ? 1 + kTypicalStep : 1 - kTypicalStep;
    kind.usual[i] += (wait - kind.usual[i]) * (operations_ < kFewOperations ? 0.25 : kFollow);
    kind.waits[i] = wait;
  }
  if (operations_ >= kFewOperations) {
    together_ += together - together_ * kForget;
    alone_ += alone - alone_ * kForget;
  }
  ++operations_;
}

}  // namespace holdfast::detect
