#include "coordinator/detect/steps.h"

namespace holdfast::detect {

void Steps::Add(uint32_t rank, const StepTime& step, Clock::TimePoint now) {
  constexpr uint64_t kLostMost = 1000;
  Told& told = ranks_[rank];
  if (step.duration_ns == 0 || step.duration_ns > kDurationNsMax || step.step >= kSeqMax) return;
  if (told.clock_ns > kDurationNsMax) told.clock_ns = 1;  // what was open meanwhile is left out
  // Steps that were not told took as long as this one.
  const bool follows = told.step != 0 && step.step > told.step;
  const uint64_t lost = follows ? std::min(step.step - told.step - 1, kLostMost) : 0;
  told.clock_ns += lost * std::min(step.duration_ns, kDurationNsMax / kLostMost);
  told.clock_ns += step.duration_ns;
  told.step = step.step;
  Collective record;
  record.func = Func::kOther;
  record.seq = step.step;
  record.bytes = 1;
  record.start_ns = told.clock_ns;
  record.stop_ns = told.clock_ns + 1;
  record.blocked_ns = 1;
  gatherer_.Add(record, rank, now);
}

}  // namespace holdfast::detect
