#include <fmt/format.h>

#include <algorithm>

#include "coordinator/state/state.h"

// Forgotten jobs. The name of a forgotten job is free at once. Attached nodes remove their replicas
// of the job immediately, other nodes when they attach and report them. Until all nodes have done
// so, a record keeps the last forgotten incarnation.

namespace holdfast::coord {

void State::On(const JobForgotten& event) {
  auto found = jobs_.find(event.job);
  if (found == jobs_.end() && HasQuarantined(event.job) && active_runs_.count(event.job) == 0) {
    // This life of the store never had the job, but quarantined replicas of it exist.
    found = jobs_.try_emplace(event.job).first;
    found->second.name = event.job;
    found->second.incarnation = HighestReported(event.job);
    found->second.phase = JobPhase::kEnded;
  }
  if (found == jobs_.end()) {
    return Answer(event.request, NotFoundError(fmt::format("no job '{}'", event.job)));
  }
  Job& job = found->second;
  if (active_runs_.count(event.job) != 0) {
    return Answer(event.request,
                  FailedPreconditionError(fmt::format(
                      "job '{0}' has a run that has not ended; stop it first: holdfast stop {0}",
                      event.job)));
  }
  if (job.phase == JobPhase::kRunning) {
    std::string why = fmt::format("job '{}' may still run; try again in a few seconds", event.job);
    if (!job.connected.empty()) {
      const auto& [rank, node] = *job.connected.begin();
      why = fmt::format("job '{}' runs: rank {} is connected on node {}; end its trainers first",
                        event.job, rank.value, nodes_[node].name);
    }
    return Answer(event.request, FailedPreconditionError(std::move(why)));
  }
  Reply reply;
  reply.request = event.request;
  Forget(job, &reply.nodes);
  if (event.request != 0) effects_.emplace_back(std::move(reply));
}

/// Forgets `job` and erases its records. Adds to `away`, unless it is null, the names of the nodes
/// that may have replicas of the job and are not attached.
void State::Forget(Job& job, std::vector<std::string>* away) {
  const std::string name = job.name;
  ForgottenJob forgotten;
  // Collects every node that may have replicas of the job, and the replicas of attached nodes.
  forgotten.upto = std::max(job.incarnation, HighestReported(name));
  const auto may_have = [&](NodeIndex node) {
    auto& left = forgotten.left[node];
    if (nodes_[node].attached && !left) left.emplace();
  };
  for (const std::set<NodeIndex>* nodes : {&job.nodes_now, &job.nodes_before, &job.subscribers}) {
    for (NodeIndex node : *nodes) may_have(node);
  }
  for (NodeIndex node = 0; node < nodes_.size(); ++node) {
    for (const auto& [place, report] : nodes_[node].other_lives) {
      if (report.identity.job != name) continue;
      may_have(node);
      forgotten.left[node]->insert(place);
    }
  }
  for (const auto& [incarnation, groups] : job.group_indexes) {
    for (const GroupIndex::Member& member : groups.members) may_have(member.node);
  }
  for (const auto& [id, version] : job.versions) {
    const auto add = [&](const std::vector<RankShard>& shards, bool parity) {
      for (uint32_t i = 0; i < shards.size(); ++i) {
        const Rank rank = parity ? ParityRank(i) : Rank{i};
        for (const Replica& replica : shards[i].replicas) {
          may_have(replica.node);
          forgotten.left[replica.node]->insert({ShardKey{name, id, rank}, replica.tier});
        }
      }
    };
    add(version.ranks, false);
    add(version.parity, true);
    if (version.recorded) effects_.emplace_back(EraseVersion{name, id});
  }
  for (const auto& [incarnation, lineage] : job.lineages) {
    effects_.emplace_back(EraseLineage{name, incarnation});
  }
  effects_.emplace_back(EraseRun{name});
  std::erase_if(pending_prepares_, [&](const auto& entry) { return entry.second.job == name; });
  const Status cancelled = CancelledError(fmt::format("job '{}' was forgotten", name));
  RefuseWaiters(job, cancelled);
  for (const RestoreWaiter& waiter : job.plan.rollbacks) Answer(waiter.request, cancelled);
  for (const WaitingJoin& join : job.waiting_joins) Answer(join.event.request, cancelled);
  for (const auto& [node, places] : forgotten.left) {
    if (nodes_[node].attached) forget_due_[{node, name}] = forgotten.upto;
    if (!nodes_[node].attached && away != nullptr) away->push_back(nodes_[node].name);
  }
  std::erase_if(forgotten.left, [](const auto& entry) {
    return entry.second.has_value() && entry.second->empty();
  });
  jobs_.erase(name);
  forgotten_[name] = std::move(forgotten);
  StoreForgotten(name);
}

/// Stores the record of a forgotten job, or erases it if no node has replicas of the job any more.
void State::StoreForgotten(const std::string& name) {
  const ForgottenJob& forgotten = forgotten_.at(name);
  if (forgotten.left.empty()) {
    forgotten_.erase(name);
    effects_.emplace_back(EraseJob{name});
    return;
  }
  JobRecord record;
  record.job = name;
  record.incarnation = record.forgotten_upto = forgotten.upto;
  for (const auto& [node, places] : forgotten.left) {
    record.nodes_before.push_back(nodes_[node].name);
  }
  effects_.emplace_back(PutJob{std::move(record)});
}

/// Updates the forgotten jobs from a node's inventory. After the event, the node gets the directive
/// to remove its replicas of them.
void State::RecordForgottenReplicas(NodeIndex node, const std::vector<StoredReplica>& replicas) {
  std::vector<std::string> changed;
  for (auto& [name, forgotten] : forgotten_) {
    auto left = forgotten.left.find(node);
    if (left == forgotten.left.end()) continue;
    left->second.emplace();
    forget_due_[{node, name}] = forgotten.upto;
    for (const StoredReplica& report : replicas) {
      if (report.identity.job != name || report.identity.version.incarnation > forgotten.upto)
        continue;
      left->second->insert(
          {ShardKey{name, report.identity.version, report.identity.rank}, report.tier});
    }
    if (!left->second->empty()) continue;
    forgotten.left.erase(left);
    changed.push_back(name);
  }
  for (const std::string& name : changed) StoreForgotten(name);
}

/// Whether the replica belongs to a forgotten incarnation. If so, its node gets the directive to
/// remove it.
bool State::RejectForgotten(NodeIndex node, const StoredReplica& report) {
  Incarnation upto;
  if (auto job = jobs_.find(report.identity.job); job != jobs_.end()) {
    upto = job->second.forgotten_upto;
  } else if (auto forgotten = forgotten_.find(report.identity.job); forgotten != forgotten_.end()) {
    upto = forgotten->second.upto;
  }
  if (report.identity.version.incarnation > upto) return false;
  if (auto forgotten = forgotten_.find(report.identity.job); forgotten != forgotten_.end()) {
    auto& left = forgotten->second.left[node];
    if (!left) left.emplace();
    left->insert({report.identity.key(), report.tier});
  }
  forget_due_[{node, report.identity.job}] = upto;
  return true;
}

void State::OnForgottenRemoved(NodeIndex node, const RemovedReplica& removed) {
  auto found = forgotten_.find(removed.key.job);
  if (found == forgotten_.end()) return;
  auto left = found->second.left.find(node);
  if (left == found->second.left.end() || !left->second) return;
  left->second->erase({removed.key, removed.tier});
  if (!left->second->empty()) return;
  found->second.left.erase(left);
  StoreForgotten(removed.key.job);
}

void State::SendForgotten() {
  for (const auto& [due, upto] : forget_due_) {
    JobState job_state;
    job_state.job = due.second;
    job_state.incarnation = upto;
    job_state.forget = true;
    SendDirective(due.first, std::move(job_state));
  }
  forget_due_.clear();
}

}  // namespace holdfast::coord
