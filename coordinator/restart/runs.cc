#include "coordinator/restart/runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "coordinator/restart/causes.h"
#include "coordinator/restart/failures.h"
#include "coordinator/restart/incidents.h"
#include "coordinator/restart/launch.h"

namespace holdfast::coord {
namespace {
/// Records workers that ended, the start of all workers, and the end of a successful run.
void CheckWorkers(RunContext& context, Run& run) {
  const std::string run_id = run.record.run_id();
  const uint32_t on_node = run.record.spec.ranks_per_node;
  std::set<Rank> present;
  for (size_t i = 0; i < run.record.nodes.size(); ++i) {
    for (const WorkerState& worker : context.table.nodes[run.record.nodes[i]].workers) {
      if (worker.job != run.record.spec.job || worker.run_id != run_id) continue;
      if (worker.rank.value / on_node != i) continue;  // not placed on this node
      present.insert(worker.rank);
      if (worker.phase != WorkerPhase::kRunning) run.ended.emplace(worker.rank, worker);
    }
  }
  const uint32_t world = run.record.spec.world();
  if (run.record.phase == RunPhase::kStarting && present.size() == world) {
    run.record.phase = RunPhase::kRunning;
    run.record.why.clear();
    StoreRun(context, run);
    MarkIncidents(context, run.record.spec.job, &IncidentRecord::place_ms);
  }
  const auto fine = [](const auto& entry) {
    return entry.second.phase == WorkerPhase::kEnded && entry.second.exit_code == 0 &&
           entry.second.signal == 0;
  };
  if (run.ended.size() == world && std::all_of(run.ended.begin(), run.ended.end(), fine)) {
    EndRun(context, run, RunPhase::kFinished, "every worker ended with exit code 0");
  }
}

std::string NameOf(const std::optional<VersionId>& version) {
  return version ? ToString(*version) : "none";
}
}  // namespace

void AdvanceRun(RunContext& context, Run& run) {
  if (HasEnded(run.record.phase)) return;
  if (run.record.phase != RunPhase::kWaiting) {
    CheckWorkers(context, run);
    std::optional<Failure> failure;
    if (!HasEnded(run.record.phase)) failure = FindFailure(context, run);
    if (failure) FailLaunch(context, run, *std::move(failure));
  }
  if (!OldWorkersRun(context, run)) {
    MarkIncidents(context, run.record.spec.job, &IncidentRecord::stop_ms);
  }
  if (run.record.phase == RunPhase::kStopping) {
    const JobProgress& progress = context.table.progress[run.record.spec.job];
    if (progress.disk >= run.stop_target) {
      EndRun(context, run, RunPhase::kStopped,
             progress.disk ? fmt::format("stopped; version {} is on disk", ToString(*progress.disk))
                           : "stopped; nothing was saved");
    } else if (context.at.now >= run.stop_at) {
      EndRun(context, run, RunPhase::kStopped,
             fmt::format("stopped; the newest version on disk is {}, in memory {}",
                         NameOf(progress.disk), NameOf(progress.memory)));
    }
  }
  if (run.record.phase == RunPhase::kWaiting && context.at.now >= run.not_before) {
    TryLaunch(context, run);
  }
}

}  // namespace holdfast::coord
