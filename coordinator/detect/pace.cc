#include "coordinator/detect/pace.h"

#include <algorithm>

#include "coordinator/detect/table.h"

namespace holdfast::detect {
namespace {

constexpr size_t kUsualMin = 8;
/// The first step includes start-up, and then a CPU may only enqueue work for a step or two.
constexpr size_t kKnownMin = 4;
constexpr double kSlackShare = 0.025;  // half of the smallest shift to detect
constexpr double kShiftShare = 0.05;
/// One step in four is learned: the usual pace then spans enough steps to show a gradual slowdown.
constexpr uint64_t kLearnEvery = 4;
constexpr double kAlarm = 6;  // sum of robust standard deviations
constexpr size_t kPendingMax = 3;
constexpr uint64_t kStepsJump = 1000;
constexpr uint32_t kImplausibleMax = 100;
constexpr double kStepMax = 4;  // the most one step may add: one long step is not a shift

}  // namespace

void Pace::Add(uint64_t step, uint64_t duration_ns) {
  if (duration_ns == 0 || duration_ns > kDurationNsMax || step > kSequenceMax) return;
  // Ignore a step number far from the others, unless many such numbers follow each other.
  const uint64_t newest = pending_.empty() ? finished_ : pending_.back().step;
  const bool plausible = newest == 0 || (step > finished_ && step < newest + kStepsJump);
  if (!plausible) {
    if (step >= newest + kStepsJump || step + kStepsJump < newest) ++implausible_;
    if (implausible_ < kImplausibleMax) return;
    pending_.clear();
    finished_ = 0;
  }
  implausible_ = 0;
  auto at = std::find_if(pending_.begin(), pending_.end(),
                         [&](const Pending& pending) { return pending.step >= step; });
  if (at == pending_.end() || at->step != step) {
    at = pending_.insert(at, Pending{step, {}});
  }
  if (!at->durations.full()) at->durations.Add(static_cast<double>(duration_ns));
  if (pending_.size() <= kPendingMax) return;
  Finish(pending_.front());
  pending_.erase(pending_.begin());
}

void Pace::Finish(const Pending& pending) {
  const uint64_t step = pending.step;
  const double duration = pending.durations.Median();
  finished_ = step;
  now_.Add(duration);
  iteration_ns_ =
      now_.size() < kKnownMin ? *std::ranges::max_element(now_.values()) : now_.Median();
  if (usual_.size() >= kUsualMin) {
    const double spread = std::max(1.4826 * centre_.mad, 0.01 * centre_.median);
    const double step_z = (duration - (1 + kSlackShare) * centre_.median) / spread;
    sum_ = std::max(0.0, sum_ + std::min(step_z, kStepMax));
    if (sum_ == 0) sum_since_ = step;
    if (sum_ >= kAlarm) return;  // a slow period must not become the usual pace
  }
  if (usual_.full() && step % kLearnEvery != 0) return;
  usual_.Add(duration);
  std::vector<double> values(usual_.values().begin(), usual_.values().end());
  centre_ = CentreOf(values);
}

std::optional<Pace::Shift> Pace::shift() const {
  if (sum_ < kAlarm || iteration_ns_ < (1 + kShiftShare) * centre_.median) return std::nullopt;
  return Shift{sum_since_ + 1, centre_.median, iteration_ns_};
}

}  // namespace holdfast::detect
