#include "coordinator/state/nodes.h"

#include <fmt/format.h>

#include <algorithm>

#include "coordinator/state/commit.h"
#include "coordinator/state/drain.h"
#include "coordinator/state/forgotten.h"
#include "coordinator/state/join.h"
#include "coordinator/state/lifecycle.h"
#include "coordinator/state/lives.h"
#include "coordinator/state/parity_plan.h"
#include "coordinator/state/prepares.h"
#include "coordinator/state/rehome.h"
#include "coordinator/state/repair.h"
#include "coordinator/state/restore.h"
#include "coordinator/state/restore_plan.h"

namespace holdfast::coord {
namespace {
/// Checks whether the agent may attach under the node's name. Any agent may if the node is not
/// attached: its disks may be new, and with them the agent's ID and start counter.
Status CheckAgent(Context& context, const NodeAttached& event, Node& node) {
  if (!node.attached) return Status::Ok();
  // Older agents send no ID: only their start counters are compared.
  const bool both_known = event.agent_id != 0 && node.agent_id != 0;
  if (both_known && event.agent_id != node.agent_id) {
    node.other_agent = event.data_address;
    node.other_agent_seen = context.at.now;
    return FencedError(fmt::format(
        "another agent of node '{}' is attached, from {}: two agents have one node name. Give each "
        "its own `node`; if this one replaces the other, stop the other",
        event.node, node.data_address));
  }
  if (event.agent_start >= node.agent_start) return Status::Ok();
  return FencedError(
      fmt::format("a newer agent of node {} is attached; stop this one", event.node));
}

void DropReplicasOf(Context& context, NodeIndex node) {
  context.cluster.nodes[node].other_lives.clear();
  for (auto& [name, job] : context.cluster.jobs) {
    for (auto& [id, version] : job.versions) version.RemoveReplicasOf(node);
  }
}

void MarkNodeLost(Context& context, NodeIndex index, std::string_view why, bool silent) {
  Node& node = context.cluster.nodes[index];
  if (!node.attached) return;
  context.effects.emplace_back(CloseAttach{
      node.attach, UnavailableError(fmt::format("node {} counts as lost: {}", node.name, why))});
  node.attached = false;
  node.stream_ended.reset();
  node.lost_at = context.at.now;
  DropReplicasOf(context, index);
  RecordFinding(context, "", index, UnavailableError(fmt::format("node lost: {}", why)));
  context.effects.emplace_back(NodeDeclaredLost{node.name, std::string(why), silent});
  CancelRepairsOf(context, index);
  std::erase_if(context.cluster.pending_prepares,
                [index](const auto& entry) { return entry.second.target == index; });
  for (auto& [name, job] : context.cluster.jobs) {
    FailRestoreTasksOf(context, job, index, false);
    job.changed = true;
  }
  SendGroupsOf(context, index);
}

/// Applies the reply to a directive for a restore or a repair.
void OnPrepared(Context& context, NodeIndex node, const Prepared& prepared) {
  const std::optional<PendingPrepare> pending = TakePrepare(context, node, prepared.request);
  if (!pending) return;
  Job& job = context.cluster.jobs.at(pending->job);
  job.changed = true;
  if (!prepared.outcome.ok()) RecordSourceFailure(context, job, *pending, prepared.outcome);
  if (pending->repair) return OnRepaired(context, job, *pending, prepared);
  OnShardPrepared(context, job, *pending, prepared);
}

/// Refuses an agent that has seen a later epoch of this life of the store.
Status CheckEpoch(const ReadContext& context, const NodeAttached& event) {
  const bool same_life = event.life_seen.value == 0 || event.life_seen == context.options.life ||
                         context.options.life.value == 0;
  if (!same_life || event.epoch_seen <= context.options.epoch) return Status::Ok();
  return FencedError(fmt::format(
      "agent of node {} has seen epoch {}, this coordinator is at {}: the coordinator's data_dir "
      "is an older copy, or a newer coordinator runs elsewhere; see docs/backup.md",
      event.node, event.epoch_seen.value, context.options.epoch.value));
}

/// Copies the description of the agent from its attach to the node.
void SetAgent(const Instant& at, const NodeAttached& event, Node& node) {
  node.attached = true;
  node.attach = event.attach;
  node.agent_start = event.agent_start;
  node.agent_id = event.agent_id;
  node.data_address = event.data_address;
  node.peer_address = event.peer_address;
  node.no_parity = event.no_parity;
  node.labels = event.labels;
  node.health = event.health;
  node.seen = at.now;
  node.seen_wall_nanos = at.wall_nanos;
  node.stream_ended.reset();
  node.disk_every = event.disk_every;
  node.shared_tiers = event.shared_tiers;
}

/// Returns whether the stream of a silent node may still end because of the probe.
bool ProbeMayFail(const ReadContext& context, const Node& node) {
  return !node.stream_ended && node.probed > node.seen &&
         context.at.now - node.probed < context.options.probe_timeout;
}

/// Keeps the commits of other lives. Those of this life have records.
void SetCommits(Context& context, const std::vector<VersionCommit>& commits, Node& node) {
  node.commits.clear();
  for (const VersionCommit& commit : commits) {
    if (commit.life != context.options.life) node.commits.insert(commit);
  }
  if (!node.commits.empty()) context.cluster.adoption_due = true;
}
}  // namespace

void OnNodeAttached(Context& context, const NodeAttached& event) {
  auto refuse = [&](Status why) {
    context.effects.emplace_back(CloseAttach{event.attach, std::move(why)});
  };
  if (Status why = CheckEpoch(context, event); !why.ok()) {
    RecordRefused(context, event, why);
    return refuse(std::move(why));
  }
  NodeIndex index = InternNode(context, event.node);
  Node& node = context.cluster.nodes[index];
  Status admitted = CheckAgent(context, event, node);
  if (!admitted.ok()) return refuse(std::move(admitted));
  if (node.attached) {
    Status why = event.agent_start > node.agent_start
                     ? FencedError(fmt::format("a newer agent of node {} attached", event.node))
                     : CancelledError("the agent attached again");
    context.effects.emplace_back(CloseAttach{node.attach, std::move(why)});
  }
  const bool same_agent = event.agent_start == node.agent_start && event.agent_id == node.agent_id;
  const bool group_changed = !node.attached || node.peer_address != event.peer_address ||
                             node.no_parity != event.no_parity;
  DropReplicasOf(context, index);
  context.cluster.refused.erase(event.node);
  SetAgent(context.at, event, node);
  EndRemoval(context, node);
  if (node.health.departing) context.cluster.leaving.insert(index);
  SetCommits(context, event.commits, node);
  SendDirective(context, index, Welcome{context.options.life});
  // This comes before the replicas are counted: parity counts only on the node that is the member.
  for (auto& [name, job] : context.cluster.jobs) RehomeReturned(context, job, event.node);
  OnRanks(context, index, event.ranks);
  RecordForgottenReplicas(context, index, event.replicas);
  OnReplicasStored(context, index, AssignLife(context, event.replicas, event.life_seen), true);
  if (const size_t quarantined = context.cluster.nodes[index].other_lives.size();
      quarantined != 0) {
    RecordFinding(
        context, "", index,
        FailedPreconditionError(fmt::format(
            "{} replicas are not of this life of the coordinator's store: they are kept and do not "
            "count; 'holdfast adopt --dry-run' shows which versions can be adopted",
            quarantined)));
  }
  CancelRepairsOf(context, index);
  for (auto& [name, job] : context.cluster.jobs) {
    FailRestoreTasksOf(context, job, index, same_agent);
    if (job.nodes_now.count(index) != 0) job.subscribers.insert(index);
    if (job.subscribers.count(index) != 0) job.job_state_to.insert(index);
    job.changed = true;
  }
  if (group_changed) SendGroupsOf(context, index);
}

void OnNodeDetached(Context& context, const NodeDetached& event) {
  Node* node = FindNode(context, event.node);
  if (node == nullptr || !node->attached || node->attach != event.attach) return;
  node->stream_ended = context.at.now;
}

void OnNodeLost(Context& context, const NodeLost& event) {
  auto found = context.cluster.node_names.find(event.node);
  if (found != context.cluster.node_names.end()) {
    MarkNodeLost(context, found->second, "out of reach", false);
  }
}

void OnNodeReported(Context& context, const NodeReported& event) {
  Node* node = FindNode(context, event.node);
  // A relay that was stopped may bring a report of before the agent attached elsewhere.
  const bool earlier_stream = node != nullptr && event.attach && event.attach != node->attach;
  if (node == nullptr || !node->attached || node->agent_start != event.agent_start ||
      event.epoch != context.options.epoch || earlier_stream) {
    return Answer(context, event.request,
                  FencedError(fmt::format("node {} is not attached to epoch {} with this agent; "
                                          "attach again",
                                          event.node, context.options.epoch.value)));
  }
  node->seen = context.at.now;
  node->seen_wall_nanos = context.at.wall_nanos;
  const bool begins_to_depart = event.health.departing && !node->health.departing;
  node->health = event.health;
  NodeIndex index = context.cluster.node_names.at(event.node);
  if (begins_to_depart) {
    context.cluster.leaving.insert(index);
    for (auto& [name, job] : context.cluster.jobs) {
      if (job.nodes_now.contains(index)) job.changed = job.repair_due = true;
    }
  }
  OnRanks(context, index, event.ranks);
  for (const RemovedReplica& removed : event.removed) OnReplicaRemoved(context, index, removed);
  OnReplicasStored(context, index, AssignLife(context, event.replicas, {}), false);
  for (const FailedReplica& failed : event.failed) OnReplicaFailed(context, index, failed);
  for (const Prepared& prepared : event.prepared) OnPrepared(context, index, prepared);
  for (const TierWanted& wanted : event.wanted) OnTierWanted(context, wanted);
  for (auto& [name, job] : context.cluster.jobs) AdvanceJoins(context, job);
  Answer(context, event.request, Status::Ok());
}

void AdvanceNodes(Context& context, const Tick& event) {
  if (event.resumed) context.cluster.no_loss_until = context.at.now + context.options.node_lease;
  const bool resumed = context.at.now < context.cluster.no_loss_until;
  std::erase_if(context.cluster.leaving, [&](NodeIndex index) {
    const Node& node = context.cluster.nodes[index];
    return !node.drain && !node.health.departing;
  });
  for (NodeIndex index = 0; index < context.cluster.nodes.size(); ++index) {
    Node& node = context.cluster.nodes[index];
    if (!node.attached || resumed) continue;
    if (node.stream_ended && context.at.now - *node.stream_ended >= context.options.detach_grace) {
      MarkNodeLost(context, index, "its stream ended", false);
    } else if (context.at.now - node.seen >= context.options.node_lease &&
               !ProbeMayFail(context, node)) {
      MarkNodeLost(context, index, "no report from its agent for a full lease", !node.stream_ended);
    } else if (node.probed < node.seen &&
               context.at.now - node.seen >= 2 * context.options.node_lease / 5) {
      // If the machine is off or unreachable it does not acknowledge this, and the stream ends.
      node.probed = context.at.now;
      SendDirective(context, index, Welcome{context.options.life});
    }
  }
}

}  // namespace holdfast::coord
