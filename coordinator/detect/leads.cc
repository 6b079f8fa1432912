#include "coordinator/detect/leads.h"

#include <algorithm>

namespace holdfast::detect {
namespace {

constexpr double kFollow = 1.0 / 32;    // of the usual waits
constexpr double kForget = 1.0 / 4096;  // of what pairs of operations showed
/// A lead that rises from operation to operation is like the one before by half, and all carried.
constexpr double kRising = 2;
constexpr uint64_t kFewOperations = 16;

}  // namespace

void Leads::Begin() {
  std::fill(largest_.begin(), largest_.end(), 0.0);
  first_ = true;
}

double Leads::carried() const {
  if (operations_ < kFewOperations || alone_ <= 0) return 0;
  return std::clamp(kRising * together_ / alone_, 0.0, 1.0);
}

void Leads::Add(const Gathered& operation) {
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
  const double beside = operation.samples.size() < 4 ? most : usual;
  double together = 0;
  double alone = 0;
  for (size_t i = 0; i < operation.samples.size(); ++i) {
    const Sample& sample = operation.samples[i];
    if (!sample.present()) {
      waits_[i] = -1;
      continue;
    }
    const auto wait = static_cast<double>(sample.duration_ns() - least);
    largest_[i] = std::max(largest_[i], beside - wait);
    if (!first_ && waits_[i] >= 0) {
      const double before = waits_[i] - usual_[i];
      together += before * (wait - usual_[i]);
      alone += before * before;
    }
    usual_[i] += (wait - usual_[i]) * (operations_ < kFewOperations ? 0.25 : kFollow);
    waits_[i] = wait;
  }
  if (operations_ >= kFewOperations) {
    together_ += together - together_ * kForget;
    alone_ += alone - alone_ * kForget;
  }
  ++operations_;
  first_ = false;
}

}  // namespace holdfast::detect
