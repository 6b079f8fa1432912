#include <fmt/format.h>

#include <algorithm>

#include "coordinator/state/state.h"

// A job that is forgotten. Its name is free at once; what nodes have of it is removed as they tell
// of it, also by nodes that were away. Until all of them have, a record says up to which
// incarnation.

namespace holdfast::coord {

void State::On(const JobForgotten& event) {
  auto found = jobs_.find(event.job);
  if (found == jobs_.end() && KeepsAside(event.job) && active_runs_.count(event.job) == 0) {
    // This life of the store never had it.
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
    return Answer(
        event.request,
        FailedPreconditionError(fmt::format(
            "job '{0}' has a run that is not over; stop it first: holdfast stop {0}", event.job)));
  }
  if (job.phase == JobPhase::kRunning) {
    std::string who = "whether it has ended is not known yet; try again in a few seconds";
    if (!job.connected.empty()) {
      const auto& [rank, node] = *job.connected.begin();
      who = fmt::format("rank {} is connected on node {}; end its trainers first", rank.value,
                        nodes_[node].name);
    }
    return Answer(event.request,
                  FailedPreconditionError(fmt::format("job '{}' runs: {}", event.job, who)));
  }
  Reply reply;
  reply.request = event.request;
  Forget(job, &reply.nodes);
  if (event.request != 0) effects_.emplace_back(std::move(reply));
}

/// `away` may be null; else the nodes that are not attached are added to it.
void State::Forget(Job& job, std::vector<std::string>* away) {
  const std::string name = job.name;
  ForgottenJob forgotten;
  forgotten.upto = std::max(job.incarnation, HighestReported(name));
  const auto may_have = [&](NodeIndex node) {
    auto& left = forgotten.left[node];
    if (nodes_[node].attached && !left) left.emplace();
  };
  for (const std::set<NodeIndex>* nodes : {&job.nodes_now, &job.nodes_before, &job.audience}) {
    for (NodeIndex node : *nodes) may_have(node);
  }
  for (NodeIndex node = 0; node < nodes_.size(); ++node) {
    for (const auto& [place, holding] : nodes_[node].other_lives) {
      if (holding.job != name) continue;
      may_have(node);
      forgotten.left[node]->insert(place);
    }
  }
  for (const auto& [incarnation, seats] : job.seats) {
    for (const PeerSeats::Seat& seat : seats.seats) may_have(seat.node);
  }
  for (const auto& [id, version] : job.versions) {
    const auto add = [&](const std::vector<RankShard>& shards, bool parity) {
      for (uint32_t i = 0; i < shards.size(); ++i) {
        const Rank rank = parity ? ParityRank(i) : Rank{i};
        for (const Copy& copy : shards[i].copies) {
          may_have(copy.node);
          forgotten.left[copy.node]->insert({ShardKey{name, id, rank}, copy.tier});
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
  std::erase_if(ordered_, [&](const auto& entry) { return entry.second.job == name; });
  const Status cancelled = CancelledError(fmt::format("job '{}' was forgotten", name));
  RefuseAsks(job, cancelled);
  for (const RestoreAsk& ask : job.plan.rollbacks) Answer(ask.request, cancelled);
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

/// What is left of a forgotten job, or nothing any more.
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

/// A node tells what it has: of the jobs that are forgotten it is to drop it.
void State::RecallForgotten(NodeIndex node, const std::vector<Holding>& holdings) {
  std::vector<std::string> changed;
  for (auto& [name, forgotten] : forgotten_) {
    auto left = forgotten.left.find(node);
    if (left == forgotten.left.end()) continue;
    left->second.emplace();
    forget_due_[{node, name}] = forgotten.upto;
    for (const Holding& holding : holdings) {
      if (holding.job != name || holding.version.incarnation > forgotten.upto) continue;
      left->second->insert({ShardKey{name, holding.version, holding.rank}, holding.tier});
    }
    if (!left->second->empty()) continue;
    forgotten.left.erase(left);
    changed.push_back(name);
  }
  for (const std::string& name : changed) StoreForgotten(name);
}

/// The holding is of an incarnation that is forgotten.
bool State::IsForgotten(NodeIndex node, const Holding& holding) {
  Incarnation upto;
  if (auto job = jobs_.find(holding.job); job != jobs_.end()) {
    upto = job->second.forgotten_upto;
  } else if (auto gone = forgotten_.find(holding.job); gone != forgotten_.end()) {
    upto = gone->second.upto;
  }
  if (holding.version.incarnation > upto) return false;
  if (auto gone = forgotten_.find(holding.job); gone != forgotten_.end()) {
    auto& left = gone->second.left[node];
    if (!left) left.emplace();
    left->insert({ShardKey{holding.job, holding.version, holding.rank}, holding.tier});
  }
  forget_due_[{node, holding.job}] = upto;
  return true;
}

void State::OnForgottenGone(NodeIndex node, const Gone& gone) {
  auto found = forgotten_.find(gone.job);
  if (found == forgotten_.end()) return;
  auto left = found->second.left.find(node);
  if (left == found->second.left.end() || !left->second) return;
  left->second->erase({ShardKey{gone.job, gone.version, gone.rank}, gone.tier});
  if (!left->second->empty()) return;
  found->second.left.erase(left);
  StoreForgotten(gone.job);
}

void State::SayForgotten() {
  for (const auto& [due, upto] : forget_due_) {
    JobWord word;
    word.job = due.second;
    word.incarnation = upto;
    word.forget = true;
    Say(due.first, std::move(word));
  }
  forget_due_.clear();
}

}  // namespace holdfast::coord
