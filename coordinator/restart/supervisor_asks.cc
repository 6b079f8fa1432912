#include <fmt/format.h>

#include <algorithm>

#include "coordinator/restart/supervisor.h"

// Jobs that others launched: restart.command asks them to start one again. It is run until it
// succeeds, the job is back, or a person says that the matter is settled.

namespace holdfast::coord {
namespace {
constexpr size_t kAttemptsShown = 32;

int64_t Seconds(Clock::Duration time) {
  return std::chrono::duration_cast<std::chrono::seconds>(time + std::chrono::milliseconds(999))
      .count();
}
}  // namespace

/// Who ran it before is gone. Whether it came to its end then is known of those that succeeded; the
/// others are asked again, unless the job comes back first.
void Supervisor::RestoreAsks(const Records& records) {
  std::map<std::string, Incarnation> newest;
  for (const LineageRecord& lineage : records.lineages) {
    Incarnation& incarnation = newest[lineage.job];
    incarnation = std::max(incarnation, lineage.incarnation);
  }
  for (const auto& [id, incident] : incidents_) {
    if (incident.state != IncidentState::kOpen || Find(incident.job) != nullptr) continue;
    Ask& ask = asks_[incident.job];
    ask.incarnation = newest[incident.job];
    ask.incident = id;
    ask.over = incident.decide_ms >= 0 || !options_.can_ask;
    ask.next_at = at_.now + options_.command_cooldown;
  }
}

/// The incident of a fault leads to a start by others. False: it does not, and says why.
bool Supervisor::StartAsk(const FaultFound& event, IncidentRecord& incident) {
  if (!options_.can_ask) return false;
  const auto before = asks_.find(event.job);
  if (before != asks_.end() && event.incarnation <= before->second.incarnation) {
    incident.plan = fmt::format("none: see incident {}", before->second.incident);
    return false;
  }
  Ask& ask = asks_[event.job];
  ask = Ask();
  ask.incarnation = event.incarnation;
  ask.incident = incident.id;
  ask.next_at = at_.now;
  incident.plan = "restart.command is run";
  const auto cool = cool_until_.find(event.job);
  if (cool != cool_until_.end() && cool->second > at_.now) {
    ask.next_at = cool->second;
    incident.plan += fmt::format(" in {} s: it has just been run for this job",
                                 Seconds(cool->second - at_.now));
  }
  return true;
}

void Supervisor::AdvanceAsks() {
  for (auto& [job, ask] : asks_) {
    if (ask.over || ask.running || at_.now < ask.next_at) continue;
    auto incident = incidents_.find(ask.incident);
    if (incident == incidents_.end()) {
      ask.over = true;
      continue;
    }
    ask.running = true;
    ++ask.attempts;
    cool_until_[job] = at_.now + options_.command_cooldown;
    effects_.emplace_back(AskRestart{incident->second});
  }
}

void Supervisor::On(const RestartCommandEnded& event) {
  const auto found = std::find_if(asks_.begin(), asks_.end(), [&event](const auto& entry) {
    return entry.second.incident == event.incident;
  });
  auto incident = incidents_.find(event.incident);
  if (found == asks_.end() || incident == incidents_.end()) return;
  Ask& ask = found->second;
  IncidentRecord& record = incident->second;
  ask.running = false;
  cool_until_[found->first] = at_.now + options_.command_cooldown;
  if (record.evidence.size() < kAttemptsShown) {
    record.evidence.push_back(
        fmt::format("restart.command, attempt {}: it {}", ask.attempts, event.how));
  }
  if (ask.over || record.state != IncidentState::kOpen) return StoreIncident(record, false);
  if (event.ok) {
    ask.over = true;
    record.decide_ms = MsSince(record);
    record.plan = fmt::format("restart.command {}; the job's ranks are waited for", event.how);
  } else if (ask.attempts < options_.command_attempts) {
    const uint32_t doublings = std::min(ask.attempts - 1, 16U);
    const Clock::Duration pause = std::min<Clock::Duration>(
        options_.command_retry_first * (1U << doublings), options_.command_retry_max);
    ask.next_at = at_.now + pause;
    record.plan =
        fmt::format("restart.command {}; attempt {} of {} follows in {} s", event.how,
                    ask.attempts + 1, options_.command_attempts, Seconds(pause));
  } else {
    ask.over = true;
    record.state = IncidentState::kGivenUp;
    record.plan = fmt::format("none: restart.command {}, as the last of {} attempts; start the "
                              "job by hand",
                              event.how, ask.attempts);
  }
  StoreIncident(record, false);
}

/// Somebody started the job again.
void Supervisor::EndAsk(const std::string& job, Incarnation newer) {
  const auto found = asks_.find(job);
  if (found != asks_.end() && newer > found->second.incarnation) found->second.over = true;
}

void Supervisor::On(const AcknowledgeWanted& event) {
  auto incident = incidents_.find(event.id);
  if (incident == incidents_.end()) {
    return Answer(event.request,
                  NotFoundError(fmt::format("no incident {}; `holdfast incidents` lists them",
                                            event.id)));
  }
  for (auto& [job, ask] : asks_) {
    if (ask.incident == event.id) ask.over = true;
  }
  IncidentRecord& record = incident->second;
  record.state = IncidentState::kAcknowledged;
  record.plan = event.why.empty() ? "acknowledged" : "acknowledged: " + event.why;
  StoreIncident(record, false);
  Answer(event.request, Status::Ok());
}

}  // namespace holdfast::coord
