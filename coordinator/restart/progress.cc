#include "coordinator/restart/progress.h"

#include <algorithm>

#include "coordinator/restart/external_restarts.h"
#include "coordinator/restart/incidents.h"

namespace holdfast::coord {
namespace {
/// Counts a newly committed step towards a refill of the restart budget. Steps that are trained
/// again after a restart do not count.
void RefillBudget(RunContext& context, Run& run, Step committed) {
  RunRecord& record = run.record;
  if (committed.value <= record.newest_step) return;
  record.newest_step = committed.value;
  if (record.budget_used == 0 || record.spec.refill_versions == 0) return;
  if (++record.budget_versions < record.spec.refill_versions) return;
  record.budget_used = record.budget_versions = 0;
  StoreRun(context, run);
}

/// Returns the step that training continues from: without a version, it begins.
uint64_t StepOf(const std::optional<VersionId>& version) {
  return version ? version->step.value : 0;
}
}  // namespace

void RecordLineage(RunContext& context, const LineageRecord& lineage, LineageChange change) {
  if (change == LineageChange::kOpened) {
    EndExternalRestart(context, lineage.job, lineage.incarnation);
  }
  JobProgress& progress = context.table.progress[lineage.job];
  progress.incarnation = std::max(progress.incarnation, std::optional(lineage.incarnation));
  Run* run = FindRun(context, lineage.job);
  if (run == nullptr || !IsStartOf(run->record, lineage)) return;
  if (change == LineageChange::kOpened) {
    run->incarnation = lineage.incarnation;
  } else if (change == LineageChange::kDecided) {
    const uint64_t sealed = StepOf(progress.sealed);
    for (auto& [id, incident] : context.table.incidents) {
      if (incident.job != lineage.job || incident.state != IncidentState::kOpen) continue;
      incident.restored.reset();
      if (lineage.decision == Decision::kVersion) incident.restored = lineage.restored;
      incident.lost_steps =
          static_cast<int64_t>(sealed - std::min(StepOf(incident.restored), sealed));
    }
    // The ranks that restore run, also where their agent has not reported the worker yet.
    MarkIncidents(context, lineage.job, &IncidentRecord::place_ms);
    MarkIncidents(context, lineage.job, &IncidentRecord::restore_ms);
  }
}

void RecordCommit(RunContext& context, const PutVersion& put) {
  const VersionRecord& version = put.record;
  JobProgress& progress = context.table.progress[version.job];
  std::optional<VersionId>& newest =
      put.committed_tier_bit == TierBit(Tier::kDisk) ? progress.disk : progress.memory;
  newest = std::max(newest, std::optional(version.version));
  auto restart = context.table.external_restarts.find(version.job);
  if (restart != context.table.external_restarts.end() &&
      version.version.incarnation > restart->second.incarnation) {
    MarkIncidents(context, version.job, &IncidentRecord::first_step_ms);
    CloseIncidents(context, version.job, IncidentState::kRecovered);
    context.table.external_restarts.erase(restart);
  }
  Run* run = FindRun(context, version.job);
  if (run == nullptr || run->incarnation != version.version.incarnation ||
      put.committed_tier_bit != TierBit(Tier::kMemory)) {
    return;
  }
  RefillBudget(context, *run, version.version.step);
  if (run->committed) return;
  run->committed = true;
  run->own_exits.clear();
  run->restore_refused = Status::Ok();
  if (run->record.fruitless != 0 || !run->record.saved) {
    run->record.fruitless = 0;
    run->record.saved = true;
    StoreRun(context, *run);
  }
  MarkIncidents(context, version.job, &IncidentRecord::first_step_ms);
  CloseIncidents(context, version.job, IncidentState::kRecovered);
}

void RecordRefusal(RunContext& context, const RestoreRefused& refused) {
  Run* run = FindRun(context, refused.job);
  if (run == nullptr || run->incarnation != refused.incarnation) return;
  run->restore_refused = refused.why;
}

void RecordSealed(RunContext& context, const NodeReported& event) {
  for (const StoredReplica& report : event.replicas) {
    auto found_job = context.table.progress.find(report.identity.job);
    if (found_job == context.table.progress.end()) continue;  // the job never started
    JobProgress& progress = found_job->second;
    if (IsParity(report.identity.rank) || report.identity.version <= progress.sealed ||
        report.identity.version.incarnation > progress.incarnation) {
      continue;
    }
    progress.sealed = report.identity.version;
    progress.sealed_at = context.at.now;
  }
}

}  // namespace holdfast::coord
