#include "coordinator/restart/run_table.h"

#include <algorithm>

namespace holdfast::coord {

Run* FindRun(RunContext& context, const std::string& job) {
  auto found = context.table.runs.find(job);
  return found == context.table.runs.end() ? nullptr : &found->second;
}

void StoreRun(RunContext& context, const Run& run) {
  context.effects.emplace_back(PutRun{run.record});
}

const Run* PlacedOn(const RunReadContext& context, const std::string& node) {
  for (const auto& [job, run] : context.table.runs) {
    if (HasEnded(run.record.phase) || run.record.phase == RunPhase::kWaiting) continue;
    const auto& nodes = run.record.nodes;
    if (std::find(nodes.begin(), nodes.end(), node) != nodes.end()) return &run;
  }
  return nullptr;
}

bool OldWorkersRun(const RunReadContext& context, const Run& run) {
  const std::string run_id = run.record.run_id();
  for (const auto& [name, node] : context.table.nodes) {
    for (const WorkerState& worker : node.workers) {
      const bool old = run.record.phase == RunPhase::kWaiting || worker.run_id != run_id;
      if (worker.job == run.record.spec.job && old && worker.phase != WorkerPhase::kEnded) {
        return true;
      }
    }
  }
  return false;
}

bool IsStartOf(const RunRecord& run, const LineageRecord& lineage) {
  const std::string name = run.run_id();
  return lineage.run_id == name || lineage.run_id.starts_with(name + "+");
}

void QuarantineNode(RunContext& context, const std::string& node, const std::string& why) {
  QuarantineRecord record{node, why, context.at.wall_nanos};
  context.table.quarantine[node] = record;
  context.effects.emplace_back(PutQuarantine{std::move(record)});
}

void Answer(RunContext& context, std::optional<RequestId> request, Status outcome) {
  if (!request) return;
  Reply reply;
  reply.request = *request;
  reply.outcome = std::move(outcome);
  context.effects.emplace_back(std::move(reply));
}

void SendDirective(RunContext& context, AttachId attach, Directive directive) {
  context.effects.emplace_back(Send{attach, std::move(directive)});
}

}  // namespace holdfast::coord
