#include "coordinator/detect/lag.h"

#include <algorithm>
#include <cmath>

namespace holdfast::detect {
namespace {

constexpr double kFollow = 1.0 / 32;    // rate at which a usual wait follows the waits
constexpr double kForget = 1.0 / 4096;  // rate at which earlier pairs of operations are forgotten
/// A lag that grows from operation to operation correlates with the previous one by only about
/// half, although all of it is carried over.
constexpr double kRisingFactor = 2;
constexpr uint64_t kFewOperations = 16;
constexpr double kGapShare = 0.1;  // of the transfer's time: a shorter gap does not count
constexpr double kTypicalStep = 0.02;
constexpr double kClipFactor = 4;  // typical deviations: bounds the weight of one long stall

}  // namespace

void LagTracker::Begin() {
  for (std::vector<double>* lags : {&sums_, &largest_, &least_, &in_row_, &rows_}) {
    std::fill(lags->begin(), lags->end(), 0.0);
  }
  for (Kind& kind : kinds_) {
    std::fill(kind.waits.begin(), kind.waits.end(), -1.0);
    kind.in_window = 0;
  }
  std::fill(seen_.begin(), seen_.end(), uint64_t{0});
  operations_in_window_ = 0;
}

/// Counts the operations of the kind since the last one that was reported. `including`: 1 with the
/// operation itself, else 0.
void LagTracker::CountUpTo(const GatheredOperation& operation, uint64_t including) {
  Kind& kind = kinds_[static_cast<size_t>(operation.kind)];
  const uint64_t missing =
      kind.next == 0 || operation.sequence < kind.next ? 0 : operation.sequence - kind.next;
  operations_in_window_ += missing + including;
  kind.next = operation.sequence + including;
}

double LagTracker::carried() const {
  if (operations_ < kFewOperations || square_ <= 0) return 0;
  // If no kind occurs twice, no lag of this window has been carried over from the same window.
  const bool repeats = std::any_of(kinds_.begin(), kinds_.end(),
                                   [](const Kind& kind) { return kind.in_window > 1; });
  if (!repeats) return 0;
  return std::clamp(kRisingFactor * product_ / square_, 0.0, 1.0);
}

/// Whether the usual member started the operation directly after the previous one. `transfer_ns`:
/// the least duration of all members, which is the transfer's.
bool LagTracker::IsBackToBack(const GatheredOperation& operation, uint64_t transfer_ns) {
  std::vector<double> gaps;
  for (size_t i = 0; i < operation.samples.size(); ++i) {
    const Sample& sample = operation.samples[i];
    if (!sample.present()) continue;
    if (stops_[i] != 0) {
      gaps.push_back(static_cast<double>(sample.started_ns) - static_cast<double>(stops_[i]));
    }
    stops_[i] = sample.ended_ns;
  }
  return !gaps.empty() &&
         LowerMedian(std::span<double>(gaps)) < kGapShare * static_cast<double>(transfer_ns);
}

void LagTracker::Add(const GatheredOperation& operation) {
  Kind& kind = kinds_[static_cast<size_t>(operation.kind)];
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
  CountUpTo(operation, 1);
  ++kind.in_window;
  const bool comparable = scratch_.size() >= 2 && scratch_.size() * 2 >= operation.samples.size();
  const double usual = LowerMedian(std::span<double>(scratch_));
  const double most = scratch_.empty() ? 0 : *std::max_element(scratch_.begin(), scratch_.end());
  // In a pair or a triple the lower median may be the late member's own wait.
  const double reference = operation.samples.size() < 4 ? most : usual;
  const bool same_row = IsBackToBack(operation, least);
  // The correlation of consecutive waits shows how much of a lag is carried over. Both are clipped,
  // so that one long stall does not dominate the estimate.
  double product = 0;
  double square = 0;
  for (size_t i = 0; i < operation.samples.size(); ++i) {
    const Sample& sample = operation.samples[i];
    if (!sample.present()) {
      kind.waits[i] = -1;
      continue;
    }
    const auto wait = static_cast<double>(sample.duration_ns() - least);
    const double lag = reference - wait;
    sums_[i] += lag;
    seen_[i] += comparable ? 1 : 0;
    largest_[i] = std::max(largest_[i], lag);
    least_[i] = std::min(least_[i], lag);
    if (!same_row) {
      rows_[i] += in_row_[i];
      in_row_[i] = lag;
    }
    in_row_[i] = std::max(in_row_[i], lag);
    if (kind.waits[i] >= 0) {
      const double clip = kClipFactor * typical_;
      const double before = std::clamp(kind.waits[i] - kind.usual[i], -clip, clip);
      product += before * std::clamp(wait - kind.usual[i], -clip, clip);
      square += before * before;
    }
    const double deviation = std::abs(wait - kind.usual[i]);
    if (typical_ == 0) typical_ = deviation;
    typical_ *= deviation > typical_ ? 1 + kTypicalStep : 1 - kTypicalStep;
    kind.usual[i] += (wait - kind.usual[i]) * (operations_ < kFewOperations ? 0.25 : kFollow);
    kind.waits[i] = wait;
  }
  if (operations_ >= kFewOperations) {
    product_ += product - product_ * kForget;
    square_ += square - square_ * kForget;
  }
  ++operations_;
}

}  // namespace holdfast::detect
