#include <fmt/format.h>

#include <algorithm>

#include "coordinator/restart/supervisor.h"

// Jobs of other launchers: restart.command makes the launcher start a job again. It is run until it
// succeeds, the job is back, or an operator acknowledges the incident.

namespace holdfast::coord {
namespace {
constexpr size_t kAttemptsShown = 32;

int64_t Seconds(Clock::Duration time) {
  return std::chrono::duration_cast<std::chrono::seconds>(time + std::chrono::milliseconds(999))
      .count();
}
}  // namespace

/// Loads open incidents of jobs of other launchers. A coordinator that ran a command may have
/// stopped before the command ended: only a success is stored. So all other commands are run again
/// after the cooldown, unless the job comes back first.
void Supervisor::LoadRestartCommands(const Records& records) {
  std::map<std::string, Incarnation> newest;
  for (const LineageRecord& lineage : records.lineages) {
    Incarnation& incarnation = newest[lineage.job];
    incarnation = std::max(incarnation, lineage.incarnation);
  }
  for (const auto& [id, incident] : incidents_) {
    if (incident.state != IncidentState::kOpen || Find(incident.job) != nullptr) continue;
    ExternalRestart& restart = external_restarts_[incident.job];
    restart.incarnation = newest[incident.job];
    restart.incident = id;
    restart.over = incident.decide_ms >= 0 || !options_.has_restart_command;
    restart.next_at = at_.now + options_.command_cooldown;
  }
}

/// Schedules restart.command for a fault. Returns false if nothing is scheduled; `incident.plan`
/// then has the reason, unless there is no command.
bool Supervisor::StartRestartCommand(const FaultDetected& event, IncidentRecord& incident) {
  if (!options_.has_restart_command) return false;
  const auto before = external_restarts_.find(event.job);
  if (before != external_restarts_.end() && event.incarnation <= before->second.incarnation) {
    incident.plan = fmt::format("none: see incident {}", before->second.incident);
    return false;
  }
  ExternalRestart& restart = external_restarts_[event.job];
  restart = ExternalRestart();
  restart.incarnation = event.incarnation;
  restart.incident = incident.id;
  restart.next_at = at_.now;
  incident.plan = "restart.command runs";
  const auto cooldown = cooldown_until_.find(event.job);
  if (cooldown != cooldown_until_.end() && cooldown->second > at_.now) {
    restart.next_at = cooldown->second;
    incident.plan += fmt::format(" in {} s: it ran for this job a moment ago",
                                 Seconds(cooldown->second - at_.now));
  }
  return true;
}

void Supervisor::AdvanceRestartCommands() {
  for (auto& [job, restart] : external_restarts_) {
    if (restart.over || restart.running || at_.now < restart.next_at) continue;
    auto incident = incidents_.find(restart.incident);
    if (incident == incidents_.end()) {
      restart.over = true;
      continue;
    }
    restart.running = true;
    ++restart.attempts;
    cooldown_until_[job] = at_.now + options_.command_cooldown;
    effects_.emplace_back(RunRestartCommand{incident->second});
  }
}

void Supervisor::On(const RestartCommandEnded& event) {
  const auto found =
      std::find_if(external_restarts_.begin(), external_restarts_.end(),
                   [&event](const auto& entry) { return entry.second.incident == event.incident; });
  auto incident = incidents_.find(event.incident);
  if (found == external_restarts_.end() || incident == incidents_.end()) return;
  ExternalRestart& restart = found->second;
  IncidentRecord& record = incident->second;
  restart.running = false;
  cooldown_until_[found->first] = at_.now + options_.command_cooldown;
  if (record.evidence.size() < kAttemptsShown) {
    record.evidence.push_back(
        fmt::format("restart.command, attempt {}: it {}", restart.attempts, event.how));
  }
  // A command that ends after the incident was settled only adds evidence.
  if (restart.over || record.state != IncidentState::kOpen) return StoreIncident(record, false);
  if (event.ok) {
    restart.over = true;
    record.decide_ms = MsSince(record);
    record.plan = fmt::format("restart.command {}; waiting for the job's ranks", event.how);
  } else if (restart.attempts < options_.command_attempts) {
    const uint32_t doublings = std::min(restart.attempts - 1, 16U);
    const Clock::Duration pause = std::min<Clock::Duration>(
        options_.command_retry_first * (1U << doublings), options_.command_retry_max);
    restart.next_at = at_.now + pause;
    record.plan = fmt::format("restart.command {}; attempt {} of {} follows in {} s", event.how,
                              restart.attempts + 1, options_.command_attempts, Seconds(pause));
  } else {
    restart.over = true;
    record.state = IncidentState::kGivenUp;
    record.plan = fmt::format(
        "none: restart.command {} in the last of {} attempts; start the "
        "job by hand",
        event.how, restart.attempts);
  }
  StoreIncident(record, false);
}

/// The job has started again: no further command is needed.
void Supervisor::EndRestartCommand(const std::string& job, Incarnation newer) {
  const auto found = external_restarts_.find(job);
  if (found != external_restarts_.end() && newer > found->second.incarnation) {
    found->second.over = true;
  }
}

void Supervisor::On(const AcknowledgeRequested& event) {
  auto incident = incidents_.find(event.id);
  if (incident == incidents_.end()) {
    return Answer(event.request, NotFoundError(fmt::format(
                                     "no incident {}; `holdfast incidents` lists them", event.id)));
  }
  for (auto& [job, restart] : external_restarts_) {
    if (restart.incident == event.id) restart.over = true;
  }
  IncidentRecord& record = incident->second;
  record.state = IncidentState::kAcknowledged;
  record.plan = event.why.empty() ? "acknowledged" : "acknowledged: " + event.why;
  StoreIncident(record, false);
  Answer(event.request, Status::Ok());
}

}  // namespace holdfast::coord
