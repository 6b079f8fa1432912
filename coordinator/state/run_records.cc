#include "coordinator/state/run_records.h"

#include <fmt/format.h>

namespace holdfast::coord {
namespace {
// Enough to distinguish the few lives that one cluster's store has, and short enough to read.
constexpr size_t kRunIdLifeDigits = 8;
}  // namespace

std::string_view ToString(RunPhase phase) {
  switch (phase) {
    case RunPhase::kWaiting:
      return "waiting";
    case RunPhase::kStarting:
      return "starting";
    case RunPhase::kRunning:
      return "running";
    case RunPhase::kStopping:
      return "stopping";
    case RunPhase::kFinished:
      return "finished";
    case RunPhase::kFailed:
      return "failed";
    case RunPhase::kStopped:
      return "stopped";
  }
  return "unknown";
}

std::string_view ToString(IncidentState state) {
  switch (state) {
    case IncidentState::kOpen:
      return "open";
    case IncidentState::kRecovered:
      return "recovered";
    case IncidentState::kNoted:
      return "noted";
    case IncidentState::kGivenUp:
      return "given up";
    case IncidentState::kAcknowledged:
      return "acknowledged";
  }
  return "unknown";
}

std::string RunRecord::run_id() const {
  const std::string text = fmt::format("run-{}.{}", serial, launches);
  return life.value == 0 ? text : text + "-" + ToString(life).substr(0, kRunIdLifeDigits);
}

}  // namespace holdfast::coord
