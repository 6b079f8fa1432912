#include "coordinator/state/cluster.h"

#include <algorithm>

namespace holdfast::coord {

NodeIndex InternNode(Context& context, const std::string& name) {
  auto [found, inserted] = context.cluster.node_names.try_emplace(
      name, static_cast<NodeIndex>(context.cluster.nodes.size()));
  if (inserted) {
    context.cluster.nodes.push_back({});
    context.cluster.nodes.back().name = name;
    context.cluster.nodes.back().lost_at = context.at.now;
  }
  return found->second;
}

Node* FindNode(Context& context, const std::string& name) {
  auto found = context.cluster.node_names.find(name);
  return found == context.cluster.node_names.end() ? nullptr
                                                   : &context.cluster.nodes[found->second];
}

void SendDirective(Context& context, NodeIndex node, Directive directive) {
  if (!context.cluster.nodes[node].attached) return;
  context.effects.emplace_back(Send{context.cluster.nodes[node].attach, std::move(directive)});
}

std::string PlaceName(const ReadContext& context, const Replica& replica) {
  if (replica.node == kNoNode) return fmt::format("tier {}", ToString(replica.tier));
  return "node " + context.cluster.nodes[replica.node].name;
}

NodeIndex NodeThatReaches(const ReadContext& context, Tier tier, NodeIndex preferred) {
  const auto reaches = [&](NodeIndex index) {
    const Node& node = context.cluster.nodes[index];
    return node.attached && (node.shared_tiers & TierBit(tier)) != 0;
  };
  if (preferred != kNoNode && reaches(preferred)) return preferred;
  for (NodeIndex index = 0; index < context.cluster.nodes.size(); ++index) {
    if (reaches(index)) return index;
  }
  return kNoNode;
}

void Answer(Context& context, std::optional<RequestId> request, Reply reply) {
  if (!request) return;
  reply.request = *request;
  context.effects.emplace_back(std::move(reply));
}

void Answer(Context& context, std::optional<RequestId> request, Status outcome) {
  Reply reply;
  reply.outcome = std::move(outcome);
  Answer(context, request, std::move(reply));
}

void RecordFinding(Context& context, const std::string& job, NodeIndex node, Status what) {
  std::string name = node == kNoNode ? "" : context.cluster.nodes[node].name;
  context.effects.emplace_back(Finding{job, std::move(name), std::move(what)});
}

JobRecord JobRecordOf(const ReadContext& context, const Job& job) {
  JobRecord record;
  record.job = job.name;
  record.uid = job.uid;
  record.incarnation = job.incarnation;
  record.abort_floor = job.abort_floor;
  record.finished = job.finished;
  record.keep_last = job.keep_last;
  record.keep_every = job.keep_every;
  record.forgotten_upto = job.forgotten_upto;
  record.ended_wall_nanos = job.ended_wall_nanos;
  for (NodeIndex node : job.nodes_now) record.nodes_now.push_back(context.cluster.nodes[node].name);
  for (NodeIndex node : job.nodes_before) {
    record.nodes_before.push_back(context.cluster.nodes[node].name);
  }
  return record;
}

Incarnation HighestReported(const ReadContext& context, const std::string& job) {
  Incarnation highest;
  for (const Node& node : context.cluster.nodes) {
    auto found = node.reported.find(job);
    if (found != node.reported.end()) highest = std::max(highest, found->second);
  }
  return highest;
}

void StoreJob(Context& context, Job& job) {
  job.record_due = false;
  job.unrecorded = 0;
  job.record_due_at.reset();
  context.effects.emplace_back(PutJob{JobRecordOf(context, job)});
}

}  // namespace holdfast::coord
