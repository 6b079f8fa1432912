#include "coordinator/restart/load_runs.h"

#include <algorithm>

#include "coordinator/restart/external_restarts.h"
#include "coordinator/restart/gpus.h"

namespace holdfast::coord {
namespace {
void LoadRun(RunContext& context, const RunRecord& record) {
  Run& run = context.table.runs[record.spec.job];
  run.record = record;
  run.launched_at = context.at.now;
  run.not_before = context.at.now;
  if (record.phase == RunPhase::kStopping) run.record.phase = RunPhase::kRunning;
  for (const std::string& name : record.nodes) {
    WorkerNode& node = context.table.nodes[name];
    node.state_since = context.at.now + context.options.node_lease;
    node.last_contact = node.state_since;
  }
}

void LoadProgress(RunContext& context, const VersionRecord& version) {
  JobProgress& progress = context.table.progress[version.job];
  if (version.phase != Phase::kCommitted) return;
  const std::optional<VersionId> id = version.version;
  progress.sealed = std::max(progress.sealed, id);
  if (version.tiers & TierBit(Tier::kMemory)) progress.memory = std::max(progress.memory, id);
  if (version.tiers & TierBit(Tier::kDisk)) progress.disk = std::max(progress.disk, id);
  Run* run = FindRun(context, version.job);
  if (run == nullptr || run->incarnation != version.version.incarnation) return;
  run->committed = run->record.saved = true;
  run->record.newest_step = std::max(run->record.newest_step, version.version.step.value);
}
}  // namespace

void LoadRuns(RunContext& context, const Records& records) {
  RunTable& table = context.table;
  for (const RunRecord& record : records.runs) LoadRun(context, record);
  for (const LineageRecord& lineage : records.lineages) {
    JobProgress& progress = table.progress[lineage.job];
    progress.incarnation = std::max(progress.incarnation, std::optional(lineage.incarnation));
    Run* run = FindRun(context, lineage.job);
    if (run != nullptr && IsStartOf(run->record, lineage)) run->incarnation = lineage.incarnation;
  }
  for (const VersionRecord& version : records.versions) LoadProgress(context, version);
  for (const IncidentRecord& incident : records.incidents) {
    table.incidents[incident.id] = incident;
    table.next_incident = std::max(table.next_incident, incident.id + 1);
  }
  for (const QuarantineRecord& record : records.quarantine) table.quarantine[record.node] = record;
  for (const DrainRecord& record : records.drains) table.drains[record.node] = record;
  for (const SuspectRecord& record : records.suspects) RestoreSuspect(context, record);
  LoadExternalRestarts(context, records);
}

}  // namespace holdfast::coord
