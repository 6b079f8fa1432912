#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "coordinator/restart/supervisor.h"

// The action on jobs that are slow or hang while their processes run. A slow job gets an incident.
// A hang gets an incident at once, and a restart when it has lasted.

namespace holdfast::coord {
namespace {
using std::chrono::milliseconds;

/// Identifies a hang, independent of the confidence.
std::string KeyOf(const FaultDetected& event) {
  std::vector<uint32_t> ranks;
  for (const Rank rank : event.ranks) ranks.push_back(rank.value);
  return fmt::format("{} {}", event.kind, fmt::join(ranks, ","));
}
}  // namespace

/// Returns how long a hang must last before the job is restarted.
Clock::Duration Supervisor::PatienceFor(const FaultDetected& event, const Run* run) const {
  Clock::Duration patience =
      event.stuck ? options_.restart_stuck_after : options_.restart_absent_after;
  if (run != nullptr && run->record.spec.hang_after_ms != 0) {
    patience = milliseconds(run->record.spec.hang_after_ms);
  }
  // The job has continued after a pause of this length before.
  patience = std::max<Clock::Duration>(patience, milliseconds(event.longest_pause_ms));
  // A restart led to the same step again: this step may simply take long.
  const auto before = hangs_.find(event.job);
  if (before != hangs_.end() && before->second.restarted_step == event.step) {
    patience = std::max(patience, 2 * before->second.restarted_after);
  }
  return patience;
}

/// Returns the action on a fault; nullopt: not even an incident.
std::optional<FaultAction> Supervisor::Decide(const FaultDetected& event, const Run* run) {
  if (event.dead) return event.action;
  DetectAction action = options_.detect_action;
  if (run != nullptr && run->record.spec.detect_action != DetectAction::kDefault) {
    action = run->record.spec.detect_action;
  }
  if (action == DetectAction::kOff) return std::nullopt;
  if (!event.hang) {
    return action == DetectAction::kAlert ? FaultAction::kNote : event.action;
  }
  const Clock::Duration patience = PatienceFor(event, run);
  Hangs& hangs = hangs_[event.job];
  if (hangs.incarnation != event.incarnation) {
    hangs.incarnation = event.incarnation;
    hangs.noted.clear();
  }
  // A user who set a patience for the run has accounted for its pauses.
  const bool certain = !event.suspected || (run != nullptr && run->record.spec.hang_after_ms != 0);
  const bool lasts = certain && milliseconds(event.lasting_ms) >= patience;
  if (action == DetectAction::kRestart && event.action != FaultAction::kNote && lasts) {
    hangs.restarted_step = event.step;
    hangs.restarted_after = patience;
    return event.action;
  }
  if (!hangs.noted.insert(KeyOf(event)).second) return std::nullopt;
  return FaultAction::kNote;
}

void Supervisor::On(const FaultDetected& event) {
  Run* run = Find(event.job);
  const bool current = run != nullptr && !HasEnded(run->record.phase) &&
                       run->record.phase != RunPhase::kWaiting &&
                       run->incarnation == event.incarnation;
  // The node itself reports an ended worker, with more detail.
  if (current && event.dead) return;
  // The ranks of an incarnation that is over naturally stop or hang.
  if (run != nullptr && !current) return;
  const std::optional<FaultAction> action = Decide(event, run);
  if (!action) return;
  Failure failure;
  failure.kind = event.kind;
  failure.what = event.what;
  failure.evidence = event.evidence;
  failure.ranks = event.ranks;
  failure.nodes = event.nodes;
  failure.avoid_nodes = *action == FaultAction::kRestartElsewhere;
  failure.healthy_until = at_.now - milliseconds(std::max(event.since_ms, event.lasting_ms));
  if (current && *action != FaultAction::kNote) return Fail(*run, std::move(failure));
  AddGpuErrors(event.nodes, failure);
  IncidentRecord& incident = OpenIncident(event.job, failure);
  incident.plan = "none: needs an operator";
  incident.state = IncidentState::kNoted;
  if (*action != FaultAction::kNote) {
    if (StartRestartCommand(event, incident)) incident.state = IncidentState::kOpen;
  } else if (event.hang && event.action != FaultAction::kNote &&
             options_.detect_action == DetectAction::kRestart) {
    const auto patience = std::chrono::duration<double>(PatienceFor(event, run));
    incident.plan = fmt::format("a restart if it lasts for {:.0f} s", patience.count());
  }
  StoreIncident(incident, true);
  AdvanceRestartCommands();
}

}  // namespace holdfast::coord
