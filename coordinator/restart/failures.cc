#include "coordinator/restart/failures.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <span>

#include "coordinator/restart/gpus.h"
#include "coordinator/restart/launch.h"

namespace holdfast::coord {
namespace {
/// Returns whether the job itself is the cause: workers exited on their own in several launches in
/// a row before any progress, so another node would not help.
bool IsJobFault(const RunReadContext& context, const Run& run) {
  if (run.own_exits.size() < context.options.strikes_max) return false;
  if (!run.record.saved) return true;
  const std::span last(run.own_exits.end() - context.options.strikes_max, run.own_exits.end());
  return std::all_of(last.begin(), last.end(),
                     [](const Run::OwnExit& end) { return !end.joined; }) &&
         std::any_of(last.begin(), last.end(),
                     [&last](const Run::OwnExit& end) { return end.node != last.front().node; });
}

/// Returns why the run must not restart; empty if it may.
std::string NoRestartLeft(const RunReadContext& context, const Run& run) {
  const RunSpec& spec = run.record.spec;
  if (run.record.budget_used >= spec.restarts_max) {
    return fmt::format("all {} restarts are used up", spec.restarts_max);
  }
  if (!IsJobFault(context, run)) return "";
  std::set<std::string> nodes;
  for (const Run::OwnExit& end : run.own_exits) nodes.insert(end.node);
  return fmt::format(
      "{} launches in a row exited on their own on {} before {}: the cause is the "
      "job, no node is blamed",
      run.own_exits.size(), fmt::join(nodes, ", "),
      run.record.saved ? "a rank joined" : "anything was saved");
}

/// Counts a strike against each blamed node, and quarantines the nodes with too many.
void Strike(RunContext& context, Run& run, const Failure& failure) {
  if (run.committed) run.strikes.clear();
  if (!failure.own_exit.empty()) {
    if (!run.record.saved || !run.restore_refused.ok()) return;
    // The same exit on several nodes is not the fault of any of them.
    const auto elsewhere = [&failure](const Run::OwnExit& end) {
      return end.node != failure.nodes.front() && end.how == failure.own_exit;
    };
    if (std::any_of(run.own_exits.begin(), run.own_exits.end(), elsewhere)) return;
  }
  for (const std::string& node : failure.nodes) {
    const bool stuck = failure.kind == "worker stuck";
    if (++run.strikes[node] < context.options.strikes_max && !stuck) continue;
    if (context.table.quarantine.count(node) != 0) continue;
    QuarantineNode(context, node, failure.what);
  }
}
}  // namespace

void FailLaunch(RunContext& context, Run& run, Failure failure) {
  AddGpuErrors(context, run.record.nodes, failure);
  if (!run.restore_refused.ok()) {
    failure.evidence.push_back("its restore was refused: " + run.restore_refused.message());
  }
  IncidentRecord& incident = OpenIncident(context, run.record.spec.job, failure);
  if (run.committed) run.own_exits.clear();
  if (!failure.own_exit.empty()) {
    run.own_exits.push_back({failure.nodes.front(), failure.own_exit, run.incarnation.has_value()});
  }
  Strike(context, run, failure);
  if (failure.avoid_nodes) run.avoid.insert(failure.nodes.begin(), failure.nodes.end());
  // Trying another node shows whether the node or the job is at fault.
  if (!run.record.saved) {
    for (const Run::OwnExit& end : run.own_exits) run.avoid.insert(end.node);
  }
  run.first_failure_at.reset();
  if (const std::string why = NoRestartLeft(context, run); !why.empty()) {
    incident.plan = "none: " + why;
    StoreIncident(context, incident, true);
    std::string text = failure.what + "; " + why;
    if (!failure.last_lines.empty()) text += "; its last lines:\n" + failure.last_lines;
    return EndRun(context, run, RunPhase::kFailed, std::move(text));
  }
  ++run.record.budget_used;
  StoreIncident(context, incident, true);
  const bool stopping = run.record.phase == RunPhase::kStopping;
  run.record.phase = RunPhase::kWaiting;
  run.record.why = failure.what;
  run.not_before = context.at.now;
  if (!run.committed && run.record.fruitless > 1) {
    const uint32_t doublings = std::min(run.record.fruitless - 2, 16U);
    run.not_before += std::min<Clock::Duration>(context.options.backoff_first * (1U << doublings),
                                                context.options.backoff_max);
  }
  if (stopping) {
    return EndRun(context, run, RunPhase::kStopped, failure.what + " while the job was stopping");
  }
  // The directive of a new launch makes the nodes stop the old workers first. Without a new launch,
  // the nodes get a directive to stop them.
  if (context.at.now >= run.not_before) TryLaunch(context, run);
  if (run.record.phase != RunPhase::kWaiting) return;
  StoreRun(context, run);
  SendWorkersToNodes(context, run);
}

}  // namespace holdfast::coord
