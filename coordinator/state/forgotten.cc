#include "coordinator/state/forgotten.h"

namespace holdfast::coord {

void RecordForgottenReplicas(Context& context, NodeIndex node,
                             const std::vector<StoredReplica>& replicas) {
  std::vector<std::string> changed;
  for (auto& [name, forgotten] : context.cluster.forgotten) {
    auto left = forgotten.left.find(node);
    if (left == forgotten.left.end()) continue;
    left->second.emplace();
    context.cluster.forget_due[{node, name}] = forgotten.upto;
    for (const StoredReplica& report : replicas) {
      if (report.identity.job != name || report.identity.version.incarnation > forgotten.upto) {
        continue;
      }
      left->second->insert(
          {ShardKey{name, report.identity.version, report.identity.rank}, report.tier});
    }
    if (!left->second->empty()) continue;
    forgotten.left.erase(left);
    changed.push_back(name);
  }
  for (const std::string& name : changed) StoreForgotten(context, name);
}

bool RejectForgotten(Context& context, NodeIndex node, const StoredReplica& report) {
  Incarnation upto;
  if (auto job = context.cluster.jobs.find(report.identity.job);
      job != context.cluster.jobs.end()) {
    upto = job->second.forgotten_upto;
  } else if (auto forgotten = context.cluster.forgotten.find(report.identity.job);
             forgotten != context.cluster.forgotten.end()) {
    upto = forgotten->second.upto;
  }
  if (report.identity.version.incarnation > upto) return false;
  if (auto forgotten = context.cluster.forgotten.find(report.identity.job);
      forgotten != context.cluster.forgotten.end()) {
    auto& left = forgotten->second.left[node];
    if (!left) left.emplace();
    left->insert({report.identity.key(), report.tier});
  }
  context.cluster.forget_due[{node, report.identity.job}] = upto;
  return true;
}

void OnForgottenRemoved(Context& context, NodeIndex node, const RemovedReplica& removed) {
  auto found = context.cluster.forgotten.find(removed.key.job);
  if (found == context.cluster.forgotten.end()) return;
  auto left = found->second.left.find(node);
  if (left == found->second.left.end() || !left->second) return;
  left->second->erase({removed.key, removed.tier});
  if (!left->second->empty()) return;
  found->second.left.erase(left);
  StoreForgotten(context, removed.key.job);
}

void StoreForgotten(Context& context, const std::string& name) {
  const ForgottenJob& forgotten = context.cluster.forgotten.at(name);
  if (forgotten.left.empty()) {
    context.cluster.forgotten.erase(name);
    context.effects.emplace_back(EraseJob{name});
    return;
  }
  JobRecord record;
  record.job = name;
  record.incarnation = record.forgotten_upto = forgotten.upto;
  for (const auto& [node, places] : forgotten.left) {
    record.nodes_before.push_back(context.cluster.nodes[node].name);
  }
  context.effects.emplace_back(PutJob{std::move(record)});
}

void SendForgotten(Context& context) {
  for (const auto& [due, upto] : context.cluster.forget_due) {
    JobState job_state;
    job_state.job = due.second;
    job_state.incarnation = upto;
    job_state.forget = true;
    SendDirective(context, due.first, std::move(job_state));
  }
  context.cluster.forget_due.clear();
}

}  // namespace holdfast::coord
