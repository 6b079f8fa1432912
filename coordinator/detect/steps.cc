#include "coordinator/detect/steps.h"

namespace holdfast::detect {

void Steps::Add(uint32_t rank, const StepTime& step, Clock::TimePoint now) {
  constexpr uint64_t kLostMax = 1000;
  RankSteps& steps = ranks_[rank];
  if (step.duration_ns == 0 || step.duration_ns > kDurationNsMax || step.step >= kSequenceMax)
    return;
  if (steps.clock_ns > kDurationNsMax) steps.clock_ns = 1;  // invalidates the open window
  // Assume that steps whose reports were lost took as long as this one.
  const bool follows = steps.newest != 0 && step.step > steps.newest;
  const uint64_t lost = follows ? std::min(step.step - steps.newest - 1, kLostMax) : 0;
  steps.clock_ns += lost * std::min(step.duration_ns, kDurationNsMax / kLostMax);
  steps.clock_ns += step.duration_ns;
  steps.newest = step.step;
  CollectiveRecord record;
  record.kind = CollectiveKind::kOther;
  record.sequence = step.step;
  record.bytes = 1;
  record.started_ns = steps.clock_ns;
  record.ended_ns = steps.clock_ns + 1;
  record.blocked_ns = 1;
  gatherer_.Add(record, rank, now);
}

}  // namespace holdfast::detect
