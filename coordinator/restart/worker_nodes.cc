#include "coordinator/restart/worker_nodes.h"

#include <set>

#include "coordinator/restart/launch.h"
#include "coordinator/restart/progress.h"

namespace holdfast::coord {
namespace {
/// Marks nodes that were lost within one lease of each other: they share a cause and probably come
/// back. The mark stays on the other nodes when the first one is back.
void MarkLostTogether(RunContext& context, WorkerNode& lost) {
  lost.lost_together = false;
  for (auto& [name, other] : context.table.nodes) {
    const bool with_it = &other != &lost && !other.attached && other.attach &&
                         lost.state_since - other.state_since <= context.options.node_lease;
    if (with_it) other.lost_together = lost.lost_together = true;
  }
}
}  // namespace

void RecordAttached(RunContext& context, const NodeAttached& event) {
  WorkerNode& node = context.table.nodes[event.node];
  node.attached = true;
  node.lost_together = false;
  node.attach = event.attach;
  if (node.agent_start != event.agent_start) node.newest_gpu_error = 0;
  node.agent_start = event.agent_start;
  node.worker_address = event.worker_address;
  node.worker_users = event.worker_users;
  node.state_since = context.at.now;
  node.last_contact = context.at.now;
  node.stream_ended = false;
  node.workers = event.workers;
  if (node.worker_address.empty()) return;
  std::set<std::string> jobs;
  for (const WorkerState& worker : node.workers) jobs.insert(worker.job);
  if (const Run* run = PlacedOn(context, event.node)) jobs.insert(run->record.spec.job);
  for (const std::string& job : jobs) SendWorkers(context, event.node, job);
}

bool RecordReport(RunContext& context, const NodeReported& event) {
  auto found = context.table.nodes.find(event.node);
  if (found == context.table.nodes.end() || found->second.agent_start != event.agent_start) {
    return false;
  }
  found->second.last_contact = context.at.now;
  const bool changed = found->second.workers != event.workers;
  found->second.workers = event.workers;
  RecordSealed(context, event);
  return changed;
}

bool RecordDetached(RunContext& context, const NodeDetached& event) {
  auto node = context.table.nodes.find(event.node);
  if (node == context.table.nodes.end() || node->second.attach != event.attach) return false;
  node->second.stream_ended = true;
  return true;
}

void RecordLost(RunContext& context, const NodeDeclaredLost& lost) {
  WorkerNode& node = context.table.nodes[lost.node];
  node.attached = false;
  node.silent = lost.silent;
  node.state_since = context.at.now;
  MarkLostTogether(context, node);
  node.workers.clear();
}

}  // namespace holdfast::coord
