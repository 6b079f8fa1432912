#include "coordinator/restart/requests.h"

#include <fmt/format.h>

#include <algorithm>

#include "coordinator/restart/launch.h"
#include "coordinator/restart/self_tests.h"

namespace holdfast::coord {

void StartRun(RunContext& context, const RunRequested& event) {
  Run* before = FindRun(context, event.spec.job);
  if (before != nullptr && !HasEnded(before->record.phase)) {
    return Answer(
        context, event.request,
        AlreadyExistsError(fmt::format(
            "job '{}' is {}; see `holdfast run --follow --job {}`, or end it with "
            "`holdfast stop {}`",
            event.spec.job, ToString(before->record.phase), event.spec.job, event.spec.job)));
  }
  Run run;
  run.record.spec = event.spec;
  run.record.serial = before == nullptr ? 1 : before->record.serial + 1;
  run.record.started_wall_nanos = context.at.wall_nanos;
  run.not_before = context.at.now;
  // Prefer the nodes of the previous run, which have the job's shards.
  if (before != nullptr && before->record.nodes.size() == event.spec.nodes) {
    run.record.nodes = before->record.nodes;
  }
  context.table.runs[event.spec.job] = std::move(run);
  StoreRun(context, context.table.runs[event.spec.job]);
  Answer(context, event.request, Status::Ok());
}

void StopRun(RunContext& context, const StopRequested& event) {
  Run* run = FindRun(context, event.job);
  if (run == nullptr) {
    return Answer(context, event.request,
                  NotFoundError(fmt::format("no job '{}' was started with "
                                            "`holdfast run`",
                                            event.job)));
  }
  if (HasEnded(run->record.phase)) {
    return Answer(context, event.request,
                  FailedPreconditionError(fmt::format("job '{}' has {} already", event.job,
                                                      ToString(run->record.phase))));
  }
  const JobProgress& progress = context.table.progress[event.job];
  run->stop_target = progress.memory;
  run->stop_at = context.at.now + std::chrono::milliseconds(event.deadline_ms);
  if (run->record.phase == RunPhase::kWaiting) {
    EndRun(context, *run, RunPhase::kStopped, "stopped while waiting for nodes");
  } else {
    run->record.phase = RunPhase::kStopping;
    run->record.why = run->stop_target ? fmt::format("until version {} or a newer one is on disk",
                                                     ToString(*run->stop_target))
                                       : "";
    StoreRun(context, *run);
  }
  Answer(context, event.request, Status::Ok());
}

void MoveRuns(RunContext& context, const std::string& node) {
  for (auto& [job, run] : context.table.runs) {
    const std::vector<std::string>& nodes = run.record.nodes;
    // A launch that has not committed anything yet would only start from the same version again.
    if (run.record.phase != RunPhase::kRunning || !run.committed ||
        std::ranges::find(nodes, node) == nodes.end() ||
        UsableNodes(context, &run).size() < run.record.spec.nodes) {
      continue;
    }
    run.record.phase = RunPhase::kWaiting;
    run.record.why = fmt::format("restarts without node {}, which is drained", node);
    run.not_before = context.at.now;
    TryLaunch(context, run);
  }
}

void ChangeQuarantine(RunContext& context, const QuarantineRequested& event) {
  if (context.table.nodes.count(event.node) == 0 &&
      context.table.quarantine.count(event.node) == 0) {
    return Answer(context, event.request,
                  NotFoundError(fmt::format("no node '{}' has ever attached", event.node)));
  }
  context.table.self_tests.erase(event.node);
  const bool out =
      context.table.quarantine.contains(event.node) || context.table.suspects.contains(event.node);
  if (event.set) {
    QuarantineNode(context, event.node, event.why);
  } else if (event.test && out) {
    BeginSelfTest(context, event.node);
  } else {
    ReleaseNode(context, event.node);
  }
  Answer(context, event.request, Status::Ok());
}

}  // namespace holdfast::coord
