#include "coordinator/view/goodput.h"

#include <algorithm>

#include "coordinator/api/convert.h"
#include "coordinator/view/incident_json.h"

namespace holdfast::view {
namespace {
using coord::AnyNumber;

constexpr int64_t kMs = 1'000'000;

/// Whether the incident stopped the job's training.
bool Stopped(const coordinator::Incident& incident) {
  return AnyNumber(incident.stop_ms()) || AnyNumber(incident.restore_ms()) ||
         AnyNumber(incident.first_step_ms()) ||
         (incident.state() == "open" && AnyNumber(incident.decide_ms()));
}

/// The time of a job from one instant to the next, each counted once.
class Passing {
 public:
  Passing(int64_t from_ms, int64_t until_ms) : at_ms_(from_ms), until_ms_(until_ms) {}
  /// Returns the milliseconds from the last instant to this one, inside the window.
  int64_t To(int64_t instant_ms) {
    const int64_t end = std::min(instant_ms, until_ms_);
    const int64_t passed = std::max<int64_t>(0, end - at_ms_);
    at_ms_ = std::max(at_ms_, end);
    return passed;
  }

 private:
  int64_t at_ms_;
  int64_t until_ms_;
};
}  // namespace

Goodput Measure(const std::vector<coordinator::Incident>& incidents, const GoodputWindow& window) {
  Goodput out;
  const int64_t from_ms = window.from_wall_nanos / kMs;
  const int64_t until_ms = window.until_wall_nanos / kMs;
  out.observed_ms = std::max<int64_t>(0, until_ms - from_ms);
  std::vector<const coordinator::Incident*> failures;
  for (const auto& incident : incidents) {
    if (Stopped(incident)) failures.push_back(&incident);
  }
  std::sort(failures.begin(), failures.end(),
            [](const auto* a, const auto* b) { return a->wall_nanos() < b->wall_nanos(); });
  Passing time(from_ms, until_ms);
  for (const auto* failure : failures) {
    const int64_t start_ms = failure->wall_nanos() / kMs;
    time.To(start_ms);
    const bool over = AnyNumber(failure->first_step_ms()) || failure->state() != "open";
    // A phase that was not recorded has no length; an open one lasts until now.
    const auto phase = [&](std::optional<int64_t> ms) {
      return ms ? time.To(start_ms + *ms) : int64_t{0};
    };
    out.infrastructure_recovery_ms += phase(AnyNumber(failure->stop_ms()));
    out.infrastructure_recovery_ms += phase(PlaceMs(*failure));
    out.checkpoint_restore_ms += phase(AnyNumber(failure->restore_ms()));
    out.program_startup_ms += phase(AnyNumber(failure->first_step_ms()));
    if (!over) {
      const int64_t open_ms = time.To(until_ms);
      // An older coordinator does not record when the workers are placed.
      const bool restores =
          AnyNumber(failure->has_place_ms() ? failure->place_ms() : failure->stop_ms()).has_value();
      (AnyNumber(failure->restore_ms()) ? out.program_startup_ms
       : restores                       ? out.checkpoint_restore_ms
                                        : out.infrastructure_recovery_ms) += open_ms;
    }
    const std::optional<int64_t> lost_steps = AnyNumber(failure->lost_steps());
    if (start_ms < from_ms || lost_steps == 0) continue;
    if (!lost_steps || !window.step_seconds) {
      out.wasted_unknown = out.wasted_unknown || over;
      continue;
    }
    const double lost_ms = static_cast<double>(*lost_steps) * *window.step_seconds * 1000;
    out.wasted_progress_ms += time.To(start_ms + AnyNumber(failure->first_step_ms()).value_or(0) +
                                      static_cast<int64_t>(lost_ms));
  }
  out.productive_ms = out.observed_ms - out.infrastructure_recovery_ms - out.checkpoint_restore_ms -
                      out.program_startup_ms - out.wasted_progress_ms;
  return out;
}

Json GoodputJson(const Goodput& goodput) {
  const bool known = goodput.observed_ms > 0;
  return {{"observed_ms", goodput.observed_ms},
          {"ettr", known ? Json(static_cast<double>(goodput.productive_ms) /
                                static_cast<double>(goodput.observed_ms))
                         : Json(nullptr)},
          {"productive_ms", goodput.productive_ms},
          {"infrastructure_recovery_ms", goodput.infrastructure_recovery_ms},
          {"checkpoint_restore_ms", goodput.checkpoint_restore_ms},
          {"program_startup_ms", goodput.program_startup_ms},
          {"wasted_progress_ms", goodput.wasted_progress_ms},
          {"wasted_unknown", goodput.wasted_unknown}};
}

}  // namespace holdfast::view
