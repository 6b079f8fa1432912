#include "coordinator/state/forget.h"

#include <fmt/format.h>

#include <algorithm>

#include "coordinator/state/forgotten.h"
#include "coordinator/state/lives.h"
#include "coordinator/state/restore_plan.h"

namespace holdfast::coord {

void OnJobForgotten(Context& context, const JobForgotten& event) {
  if (context.cluster.active_runs.count(event.job) != 0) {
    return Answer(context, event.request,
                  FailedPreconditionError(fmt::format(
                      "job '{0}' has a run that has not ended; stop it first: holdfast stop {0}",
                      event.job)));
  }
  auto found = context.cluster.jobs.find(event.job);
  if (found == context.cluster.jobs.end() && HasQuarantined(context, event.job)) {
    // This life of the store never had the job, but quarantined replicas of it exist.
    found = context.cluster.jobs.try_emplace(event.job).first;
    found->second.name = event.job;
    found->second.incarnation = HighestReported(context, event.job);
    found->second.phase = JobPhase::kEnded;
  }
  if (found == context.cluster.jobs.end() && context.cluster.ended_runs.erase(event.job) != 0) {
    // Its run ended before a trainer joined: a wrong command, for example.
    context.effects.emplace_back(EraseRun{event.job});
    return Answer(context, event.request, Status::Ok());
  }
  if (found == context.cluster.jobs.end()) {
    return Answer(context, event.request, NotFoundError(fmt::format("no job '{}'", event.job)));
  }
  Job& job = found->second;
  if (job.phase == JobPhase::kRunning) {
    std::string why = fmt::format("job '{}' may still run; try again in a few seconds", event.job);
    if (!job.connected.empty()) {
      const auto& [rank, node] = *job.connected.begin();
      why = fmt::format("job '{}' runs: rank {} is connected on node {}; end its trainers first",
                        event.job, rank.value, context.cluster.nodes[node].name);
    }
    return Answer(context, event.request, FailedPreconditionError(std::move(why)));
  }
  Reply reply;
  ForgetJob(context, job, &reply.nodes);
  Answer(context, event.request, std::move(reply));
}

namespace {

/// Collects every node that may have replicas of the job, and the replicas of attached nodes.
ForgottenJob ReplicasLeft(const Context& context, const Job& job) {
  const std::string& name = job.name;
  ForgottenJob forgotten;
  forgotten.upto = std::max(job.incarnation, HighestReported(context, name));
  const auto may_have = [&](NodeIndex node) {
    auto& left = forgotten.left[node];
    if (context.cluster.nodes[node].attached && !left) left.emplace();
  };
  for (const std::set<NodeIndex>* nodes : {&job.nodes_now, &job.nodes_before, &job.subscribers}) {
    for (NodeIndex node : *nodes) may_have(node);
  }
  for (NodeIndex node = 0; node < context.cluster.nodes.size(); ++node) {
    for (const auto& [place, report] : context.cluster.nodes[node].other_lives) {
      if (report.identity.job != name) continue;
      may_have(node);
      forgotten.left[node]->insert(place);
    }
  }
  for (const auto& [incarnation, groups] : job.group_indexes) {
    for (const GroupIndex::Member& member : groups.members) may_have(member.node);
  }
  for (const auto& [id, version] : job.versions) {
    const auto add = [&, id = id](const std::vector<RankShard>& shards, bool parity) {
      for (uint32_t i = 0; i < shards.size(); ++i) {
        const Rank rank = parity ? ParityRank(i) : Rank{i};
        for (const Replica& replica : shards[i].replicas) {
          // Every node removes the job from shared tiers; no node has to report that.
          if (replica.node == kNoNode) continue;
          may_have(replica.node);
          forgotten.left[replica.node]->insert({ShardKey{name, id, rank}, replica.tier});
        }
      }
    };
    add(version.ranks, false);
    add(version.parity, true);
  }
  return forgotten;
}

}  // namespace

void ForgetJob(Context& context, Job& job, std::vector<std::string>* away) {
  const std::string name = job.name;
  ForgottenJob forgotten = ReplicasLeft(context, job);
  for (const auto& [id, version] : job.versions) {
    if (version.recorded) context.effects.emplace_back(EraseVersion{name, id});
  }
  for (const auto& [incarnation, lineage] : job.lineages) {
    context.effects.emplace_back(EraseLineage{name, incarnation});
  }
  context.cluster.ended_runs.erase(name);
  context.effects.emplace_back(EraseRun{name});
  std::erase_if(context.cluster.pending_prepares,
                [&](const auto& entry) { return entry.second.job == name; });
  const Status cancelled = CancelledError(fmt::format("job '{}' was forgotten", name));
  RefuseWaiters(context, job, cancelled);
  RefuseAll(context, job.plan.rollbacks, cancelled);
  RefuseAll(context, job.plan.rollbacks_to_newest, cancelled);
  for (const WaitingJoin& join : job.waiting_joins) Answer(context, join.event.request, cancelled);
  for (const auto& [node, places] : forgotten.left) {
    if (context.cluster.nodes[node].attached) {
      context.cluster.forget_due[{node, name}] = forgotten.upto;
    }
    if (!context.cluster.nodes[node].attached && away != nullptr) {
      away->push_back(context.cluster.nodes[node].name);
    }
  }
  std::erase_if(forgotten.left, [](const auto& entry) {
    return entry.second.has_value() && entry.second->empty();
  });
  context.cluster.jobs.erase(name);
  context.cluster.forgotten[name] = std::move(forgotten);
  StoreForgotten(context, name);
}

}  // namespace holdfast::coord
