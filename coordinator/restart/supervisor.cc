#include "coordinator/restart/supervisor.h"

#include <algorithm>

#include "coordinator/restart/external_restarts.h"
#include "coordinator/restart/gpus.h"
#include "coordinator/restart/hangs.h"
#include "coordinator/restart/incidents.h"
#include "coordinator/restart/load_runs.h"
#include "coordinator/restart/progress.h"
#include "coordinator/restart/requests.h"
#include "coordinator/restart/runs.h"
#include "coordinator/restart/self_tests.h"
#include "coordinator/restart/worker_nodes.h"

namespace holdfast::coord {
namespace {
bool WasRefused(const NodeAttached& event, std::span<const Effect> effects) {
  return std::any_of(effects.begin(), effects.end(), [&event](const Effect& effect) {
    const auto* close = std::get_if<CloseAttach>(&effect);
    return close != nullptr && close->attach == event.attach;
  });
}

bool WasRefused(const NodeReported& event, std::span<const Effect> effects) {
  return std::any_of(effects.begin(), effects.end(), [&event](const Effect& effect) {
    const auto* reply = std::get_if<Reply>(&effect);
    return reply != nullptr && reply->request == event.request && !reply->outcome.ok();
  });
}

/// Passes an event of State to its module. Returns whether runs may have to react: nodes send
/// thousands of reports, and few of them change anything.
bool ObserveEvent(RunContext& context, const Event& event, std::span<const Effect> effects) {
  if (const auto* tick = std::get_if<Tick>(&event)) {
    if (tick->resumed) context.table.grace_until = context.at.now + context.options.node_lease;
    return true;
  }
  if (const auto* attached = std::get_if<NodeAttached>(&event)) {
    if (WasRefused(*attached, effects)) return false;
    RecordAttached(context, *attached);
    return true;
  }
  if (const auto* reported = std::get_if<NodeReported>(&event)) {
    if (WasRefused(*reported, effects)) return false;
    return RecordReport(context, *reported);
  }
  const auto* detached = std::get_if<NodeDetached>(&event);
  return detached != nullptr && RecordDetached(context, *detached);
}

/// Passes an effect of State to its module. Returns whether runs may have to react.
bool ObserveEffect(RunContext& context, const Effect& effect) {
  if (const auto* lost = std::get_if<NodeDeclaredLost>(&effect)) {
    RecordLost(context, *lost);
    return true;
  }
  if (const auto* put = std::get_if<PutDrain>(&effect)) {
    context.table.drains[put->record.node] = put->record;
    return true;
  }
  if (const auto* erase = std::get_if<EraseDrain>(&effect)) {
    context.table.drains.erase(erase->node);
    return true;
  }
  if (const auto* leave = std::get_if<RunsMayLeave>(&effect)) {
    MoveRuns(context, leave->node);
    return true;
  }
  if (const auto* erase = std::get_if<EraseRun>(&effect)) {
    context.table.runs.erase(erase->job);
    context.table.progress.erase(erase->job);
  } else if (const auto* lineage = std::get_if<PutLineage>(&effect)) {
    RecordLineage(context, lineage->record, lineage->change);
  } else if (const auto* put = std::get_if<PutVersion>(&effect)) {
    if (put->committed_tier_bit != 0) RecordCommit(context, *put);
  } else if (const auto* refused = std::get_if<RestoreRefused>(&effect)) {
    RecordRefusal(context, *refused);
  } else if (const auto* finding = std::get_if<Finding>(&effect)) {
    NoteFinding(context, *finding);
  }
  return false;
}

bool ObserveEffects(RunContext& context, std::span<const Effect> effects) {
  bool advance = false;
  for (const Effect& effect : effects) advance = ObserveEffect(context, effect) || advance;
  return advance;
}

void HandleRequest(RunContext& context, const RunRequested& event) { StartRun(context, event); }
void HandleRequest(RunContext& context, const StopRequested& event) { StopRun(context, event); }
void HandleRequest(RunContext& context, const QuarantineRequested& event) {
  ChangeQuarantine(context, event);
}
void HandleRequest(RunContext& context, const AcknowledgeRequested& event) {
  AcknowledgeIncident(context, event);
}
void HandleRequest(RunContext& context, const RestartCommandEnded& event) {
  RecordCommandEnd(context, event);
}
void HandleRequest(RunContext& context, const FaultDetected& event) { HandleFault(context, event); }
void HandleRequest(RunContext& context, const GpuFailed& event) { RecordGpuError(context, event); }
void HandleRequest(RunContext& context, const SelfTested& event) { RecordSelfTest(context, event); }

void Advance(RunContext& context) {
  for (auto& [job, run] : context.table.runs) AdvanceRun(context, run);
  AdvanceRestartCommands(context);
}
}  // namespace

Supervisor::Supervisor(const SupervisorOptions& options, const Records& records, Instant at)
    : options_(options), at_(at) {
  std::vector<Effect> none;
  RunContext context{options_, at_, table_, none};
  LoadRuns(context, records);
}

std::vector<Effect> Supervisor::Apply(const RunEvent& event, Instant at) {
  at_ = at;
  std::vector<Effect> effects;
  RunContext context{options_, at_, table_, effects};
  std::visit([&context](const auto& e) { HandleRequest(context, e); }, event);
  Advance(context);
  return effects;
}

std::vector<Effect> Supervisor::Observe(const Event& event, std::span<const Effect> effects,
                                        Instant at) {
  at_ = at;
  std::vector<Effect> own;
  RunContext context{options_, at_, table_, own};
  const bool advance = ObserveEvent(context, event, effects);
  if (ObserveEffects(context, effects) || advance) Advance(context);
  return own;
}

std::vector<Effect> Supervisor::Observe(std::span<const Effect> effects, Instant at) {
  at_ = at;
  std::vector<Effect> own;
  RunContext context{options_, at_, table_, own};
  if (ObserveEffects(context, effects)) Advance(context);
  return own;
}

std::vector<RunStatus> Supervisor::Runs(const std::string& job) const {
  return RunsOf({options_, at_, table_}, job);
}

std::vector<IncidentRecord> Supervisor::Incidents(const std::string& job, uint64_t id) const {
  return IncidentsOf({options_, at_, table_}, job, id);
}

std::vector<QuarantineRecord> Supervisor::Quarantined() const {
  std::vector<QuarantineRecord> list;
  for (const auto& [node, record] : table_.quarantine) list.push_back(record);
  return list;
}

std::map<std::string, uint32_t> Supervisor::Blamed() const {
  return BlamedNodes({options_, at_, table_});
}

std::vector<std::string> Supervisor::Suspects() const {
  return SuspectNodes({options_, at_, table_});
}

}  // namespace holdfast::coord
