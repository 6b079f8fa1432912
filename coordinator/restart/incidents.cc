#include "coordinator/restart/incidents.h"

#include <algorithm>
#include <set>

namespace holdfast::coord {
namespace {
constexpr auto kRepeatWindow = std::chrono::minutes(10);
constexpr std::chrono::nanoseconds kBlamedFor = std::chrono::hours(7 * 24);
constexpr size_t kBlamedAtOnce = 2;  // nodes: more probably share a cause
}  // namespace

IncidentRecord& OpenIncident(RunContext& context, const std::string& job, const Failure& failure) {
  IncidentRecord incident;
  incident.id = context.table.next_incident++;
  incident.job = job;
  const int64_t detect_ms =
      std::max<int64_t>(Milliseconds(context.at.now - failure.healthy_until), 0);
  incident.detect_ms = detect_ms;
  incident.wall_nanos = context.at.wall_nanos - detect_ms * 1'000'000;
  incident.kind = failure.kind;
  incident.what = failure.what;
  incident.evidence = failure.evidence;
  if (incident.evidence.size() > kEvidenceMax) incident.evidence.resize(kEvidenceMax);
  incident.ranks = failure.ranks;
  incident.nodes = failure.nodes;
  while (context.table.incidents.size() >= context.options.incidents_max) {
    context.effects.emplace_back(EraseIncident{context.table.incidents.begin()->first});
    context.table.incidents.erase(context.table.incidents.begin());
  }
  HOLDFAST_INVARIANT(
      *context.options.invariants,
      context.table.incidents.empty() || context.table.incidents.rbegin()->first < incident.id,
      Kv("id", incident.id));
  return context.table.incidents[incident.id] = std::move(incident);
}

void NoteIncident(RunContext& context, const std::string& job, const Failure& failure,
                  const std::string& plan) {
  for (auto it = context.table.incidents.rbegin(); it != context.table.incidents.rend(); ++it) {
    const IncidentRecord& incident = it->second;
    if (context.at.wall_nanos - incident.wall_nanos >
        std::chrono::nanoseconds(kRepeatWindow).count())
      break;
    if (incident.job == job && incident.what == failure.what) return;
  }
  IncidentRecord& incident = OpenIncident(context, job, failure);
  incident.plan = plan;
  incident.state = IncidentState::kNoted;
  StoreIncident(context, incident, true);
}

void StoreIncident(RunContext& context, const IncidentRecord& incident, bool opened) {
  context.effects.emplace_back(PutIncident{incident, opened});
}

int64_t MsSince(const RunReadContext& context, const IncidentRecord& incident) {
  return std::max<int64_t>((context.at.wall_nanos - incident.wall_nanos) / 1'000'000, 0);
}

void MarkIncidents(RunContext& context, const std::string& job,
                   std::optional<int64_t> IncidentRecord::*time) {
  for (auto& [id, incident] : context.table.incidents) {
    if (incident.job != job || incident.state != IncidentState::kOpen || incident.*time) {
      continue;
    }
    incident.*time = MsSince(context, incident);
    StoreIncident(context, incident, false);
  }
}

void CloseIncidents(RunContext& context, const std::string& job, IncidentState state) {
  for (auto& [id, incident] : context.table.incidents) {
    if (incident.job != job || incident.state != IncidentState::kOpen) continue;
    incident.state = state;
    StoreIncident(context, incident, false);
  }
}

std::map<std::string, uint32_t> BlamedNodes(const RunReadContext& context) {
  std::map<std::string, std::set<std::string>> jobs_of;
  for (const auto& [id, incident] : context.table.incidents) {
    const bool recent = context.at.wall_nanos - incident.wall_nanos < kBlamedFor.count();
    if (!recent || incident.nodes.size() > kBlamedAtOnce) continue;
    for (const std::string& node : incident.nodes) jobs_of[node].insert(incident.job);
  }
  std::map<std::string, uint32_t> blamed;
  for (const auto& [node, jobs] : jobs_of) blamed[node] = static_cast<uint32_t>(jobs.size());
  return blamed;
}

void NoteFinding(RunContext& context, const Finding& finding) {
  Failure failure;
  failure.what = finding.what.message();
  failure.healthy_until = context.at.now;
  if (!finding.kind.empty()) {
    failure.kind = finding.kind;
    failure.ranks = finding.ranks;
    return NoteIncident(context, finding.job, failure, "none: needs an operator");
  }
  if (finding.what.code() != ErrorCode::kDataLoss) return;
  failure.kind = "damage";
  if (!finding.node.empty()) failure.nodes = {finding.node};
  NoteIncident(context, finding.job, failure,
               "the damaged replica no longer counts; its repair is scheduled");
}

}  // namespace holdfast::coord
