#include "coordinator/restart/hangs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "coordinator/restart/external_restarts.h"
#include "coordinator/restart/failures.h"
#include "coordinator/restart/gpus.h"
#include "coordinator/restart/incidents.h"

namespace holdfast::coord {
namespace {
using std::chrono::milliseconds;

/// Identifies a hang by its kind and ranks, whether it is suspected or certain.
std::string KeyOf(const FaultDetected& event) {
  std::vector<uint32_t> ranks;
  for (const Rank rank : event.ranks) ranks.push_back(rank.value);
  return fmt::format("{} {}", event.kind, fmt::join(ranks, ","));
}

/// Returns how long a hang must last before the job is restarted.
Clock::Duration PatienceFor(const RunReadContext& context, const FaultDetected& event,
                            const Run* run) {
  Clock::Duration patience =
      event.stuck ? context.options.restart_stuck_after : context.options.restart_absent_after;
  if (run != nullptr && run->record.spec.hang_after_ms != 0) {
    patience = milliseconds(run->record.spec.hang_after_ms);
  }
  // The job has continued after a pause of this length before.
  patience = std::max<Clock::Duration>(patience, milliseconds(event.longest_pause_ms));
  // A restart led to the same step again: this step may simply take long.
  const auto before = context.table.hangs.find(event.job);
  if (before != context.table.hangs.end() && before->second.restart &&
      before->second.restart->step == event.step) {
    patience = std::max(patience, 2 * before->second.restart->patience);
  }
  return patience;
}

/// Returns the action on a fault; nullopt: not even an incident.
std::optional<FaultAction> ActionOn(RunContext& context, const FaultDetected& event,
                                    const Run* run) {
  if (event.dead) return event.action;
  DetectAction action = context.options.detect_action;
  if (run != nullptr && run->record.spec.detect_action != DetectAction::kDefault) {
    action = run->record.spec.detect_action;
  }
  if (action == DetectAction::kOff) return std::nullopt;
  if (!event.hang) {
    return action == DetectAction::kAlert ? FaultAction::kNote : event.action;
  }
  const Clock::Duration patience = PatienceFor(context, event, run);
  HangHistory& hangs = context.table.hangs[event.job];
  if (hangs.incarnation != event.incarnation) {
    hangs.incarnation = event.incarnation;
    hangs.noted.clear();
  }
  // A user who set a patience for the run has accounted for its pauses.
  const bool certain = !event.suspected || (run != nullptr && run->record.spec.hang_after_ms != 0);
  const bool lasts = certain && milliseconds(event.lasting_ms) >= patience;
  if (action == DetectAction::kRestart && event.action != FaultAction::kNote && lasts) {
    hangs.restart = HangRestart{event.step, patience};
    return event.action;
  }
  if (!hangs.noted.insert(KeyOf(event)).second) return std::nullopt;
  return FaultAction::kNote;
}
}  // namespace

void HandleFault(RunContext& context, const FaultDetected& event) {
  Run* run = FindRun(context, event.job);
  const bool current = run != nullptr && !HasEnded(run->record.phase) &&
                       run->record.phase != RunPhase::kWaiting &&
                       run->incarnation == event.incarnation;
  // The node itself reports an ended worker, with more detail.
  if (current && event.dead) return;
  // The ranks of an incarnation that is over stop or hang in any case.
  if (run != nullptr && !current) return;
  const std::optional<FaultAction> action = ActionOn(context, event, run);
  if (!action) return;
  Failure failure;
  failure.kind = event.kind;
  failure.what = event.what;
  failure.evidence = event.evidence;
  failure.ranks = event.ranks;
  failure.nodes = event.nodes;
  failure.avoid_nodes = *action == FaultAction::kRestartElsewhere;
  failure.healthy_until = context.at.now - milliseconds(std::max(event.since_ms, event.lasting_ms));
  if (current && *action != FaultAction::kNote) {
    return FailLaunch(context, *run, std::move(failure));
  }
  AddGpuErrors(context, event.nodes, failure);
  IncidentRecord& incident = OpenIncident(context, event.job, failure);
  incident.plan = "none: needs an operator";
  incident.state = IncidentState::kNoted;
  if (*action != FaultAction::kNote) {
    if (StartRestartCommand(context, event, incident)) incident.state = IncidentState::kOpen;
  } else if (event.hang && event.action != FaultAction::kNote &&
             context.options.detect_action == DetectAction::kRestart) {
    const auto patience = std::chrono::duration<double>(PatienceFor(context, event, run));
    incident.plan = fmt::format("a restart if it lasts for {:.0f} s", patience.count());
  }
  StoreIncident(context, incident, true);
  AdvanceRestartCommands(context);
}

}  // namespace holdfast::coord
