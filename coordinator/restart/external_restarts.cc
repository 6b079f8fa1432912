#include "coordinator/restart/external_restarts.h"

#include <fmt/format.h>

#include <algorithm>

namespace holdfast::coord {
namespace {
constexpr size_t kAttemptsShown = 32;

int64_t Seconds(Clock::Duration time) {
  return std::chrono::duration_cast<std::chrono::seconds>(time + std::chrono::milliseconds(999))
      .count();
}
}  // namespace

void LoadExternalRestarts(RunContext& context, const Records& records) {
  std::map<std::string, Incarnation> newest;
  for (const LineageRecord& lineage : records.lineages) {
    Incarnation& incarnation = newest[lineage.job];
    incarnation = std::max(incarnation, lineage.incarnation);
  }
  for (const auto& [id, incident] : context.table.incidents) {
    if (incident.state != IncidentState::kOpen || FindRun(context, incident.job) != nullptr) {
      continue;
    }
    ExternalRestart& restart = context.table.external_restarts[incident.job];
    const auto known = newest.find(incident.job);
    if (known != newest.end()) restart.incarnation = known->second;
    restart.incident = id;
    restart.over = incident.decide_ms || !context.options.has_restart_command;
    restart.next_at = context.at.now + context.options.command_cooldown;
  }
}

bool StartRestartCommand(RunContext& context, const FaultDetected& event,
                         IncidentRecord& incident) {
  if (!context.options.has_restart_command) return false;
  const auto before = context.table.external_restarts.find(event.job);
  if (before != context.table.external_restarts.end() &&
      event.incarnation <= before->second.incarnation) {
    incident.plan = fmt::format("none: see incident {}", before->second.incident);
    return false;
  }
  ExternalRestart& restart = context.table.external_restarts[event.job];
  restart = ExternalRestart();
  restart.incarnation = event.incarnation;
  restart.incident = incident.id;
  restart.next_at = context.at.now;
  incident.plan = "restart.command runs";
  const auto cooldown = context.table.cooldown_until.find(event.job);
  if (cooldown != context.table.cooldown_until.end() && cooldown->second > context.at.now) {
    restart.next_at = cooldown->second;
    incident.plan += fmt::format(" in {} s: it ran for this job a moment ago",
                                 Seconds(cooldown->second - context.at.now));
  }
  return true;
}

void AdvanceRestartCommands(RunContext& context) {
  for (auto& [job, restart] : context.table.external_restarts) {
    if (restart.over || restart.running || context.at.now < restart.next_at) continue;
    auto incident = context.table.incidents.find(restart.incident);
    if (incident == context.table.incidents.end()) {
      restart.over = true;
      continue;
    }
    restart.running = true;
    ++restart.attempts;
    context.table.cooldown_until[job] = context.at.now + context.options.command_cooldown;
    context.effects.emplace_back(RunRestartCommand{incident->second});
  }
}

void RecordCommandEnd(RunContext& context, const RestartCommandEnded& event) {
  const auto found =
      std::find_if(context.table.external_restarts.begin(), context.table.external_restarts.end(),
                   [&event](const auto& entry) { return entry.second.incident == event.incident; });
  auto incident = context.table.incidents.find(event.incident);
  if (found == context.table.external_restarts.end() || incident == context.table.incidents.end()) {
    return;
  }
  ExternalRestart& restart = found->second;
  IncidentRecord& record = incident->second;
  restart.running = false;
  context.table.cooldown_until[found->first] = context.at.now + context.options.command_cooldown;
  if (record.evidence.size() < kAttemptsShown) {
    record.evidence.push_back(
        fmt::format("restart.command, attempt {}: it {}", restart.attempts, event.how));
  }
  // A command that ends after the incident was closed only adds evidence.
  if (restart.over || record.state != IncidentState::kOpen) {
    return StoreIncident(context, record, false);
  }
  if (event.ok) {
    restart.over = true;
    record.decide_ms = MsSince(context, record);
    record.plan = fmt::format("restart.command {}; waiting for the job's ranks", event.how);
  } else if (restart.attempts < context.options.command_attempts) {
    const uint32_t doublings = std::min(restart.attempts - 1, 16U);
    const Clock::Duration pause = std::min<Clock::Duration>(
        context.options.command_retry_first * (1U << doublings), context.options.command_retry_max);
    restart.next_at = context.at.now + pause;
    record.plan =
        fmt::format("restart.command {}; attempt {} of {} follows in {} s", event.how,
                    restart.attempts + 1, context.options.command_attempts, Seconds(pause));
  } else {
    restart.over = true;
    record.state = IncidentState::kGivenUp;
    record.plan = fmt::format(
        "none: restart.command {} in the last of {} attempts; start the "
        "job by hand",
        event.how, restart.attempts);
  }
  StoreIncident(context, record, false);
}

void EndExternalRestart(RunContext& context, const std::string& job, Incarnation newer) {
  const auto found = context.table.external_restarts.find(job);
  if (found != context.table.external_restarts.end() && newer > found->second.incarnation) {
    found->second.over = true;
  }
}

void AcknowledgeIncident(RunContext& context, const AcknowledgeRequested& event) {
  auto incident = context.table.incidents.find(event.id);
  if (incident == context.table.incidents.end()) {
    return Answer(
        context, event.request,
        NotFoundError(fmt::format("no incident {}; `holdfast incidents` lists them", event.id)));
  }
  for (auto& [job, restart] : context.table.external_restarts) {
    if (restart.incident == event.id) restart.over = true;
  }
  IncidentRecord& record = incident->second;
  record.state = IncidentState::kAcknowledged;
  record.plan = event.why.empty() ? "acknowledged" : "acknowledged: " + event.why;
  StoreIncident(context, record, false);
  Answer(context, event.request, Status::Ok());
}

}  // namespace holdfast::coord
