#include <fmt/format.h>

#include <algorithm>

#include "coordinator/state/state.h"

// A rank starts: which incarnation is it, and may it?

namespace holdfast::coord {
namespace {
/// The process is part of a start under this run id already.
bool IsPartOfRun(const Job& job, const RankJoined& event) {
  if (event.start != JoinStart::kReturn || event.incarnation_before.value == 0) return false;
  auto before = job.lineages.find(event.incarnation_before);
  return before == job.lineages.end() || before->second.run_id == event.run_id;
}
}  // namespace

Status State::CheckJoin(const RankJoined& event, NodeIndex& index) {
  Node* node = Find(event.node);
  if (node == nullptr || !node->attached) {
    return UnavailableError(fmt::format("node {} is not attached yet; try again", event.node));
  }
  if (node->agent_start != event.agent_start) {
    return UnavailableError(
        fmt::format("another agent of node {} is attached; try again", event.node));
  }
  index = node_names_.at(event.node);
  if (event.world == 0 || event.world > kWorldMax || event.rank.value >= event.world) {
    return InvalidArgumentError(fmt::format(
        "rank {} in a world of {}: ranks go from 0 to world - 1, the world from 1 to {}",
        event.rank.value, event.world, kWorldMax));
  }
  return Status::Ok();
}

Status State::CheckRun(const Job& job, const RankJoined& event) const {
  if (job.uid != event.uid) {
    return PermissionDeniedError(
        fmt::format("job '{}' belongs to uid {}, this process runs as uid {}; choose another job "
                    "name",
                    job.name, job.uid, event.uid));
  }
  const bool same_run = job.lineage().run_id == event.run_id;
  if (same_run && IsPartOfRun(job, event) && event.incarnation_before < job.incarnation) {
    return FencedError(
        fmt::format("run '{}' of job '{}' was started again: incarnation {} runs now, this process "
                    "is of incarnation {}",
                    event.run_id, job.name, job.incarnation.value, event.incarnation_before.value));
  }
  for (const auto& [incarnation, lineage] : job.lineages) {
    if (same_run || lineage.run_id != event.run_id) continue;
    return FencedError(fmt::format(
        "run '{}' was incarnation {} of job '{}'; incarnation {} (run '{}') runs now", event.run_id,
        incarnation.value, job.name, job.incarnation.value, job.lineage().run_id));
  }
  const LineageRecord& current = job.lineage();
  if (same_run && current.world != event.world && !IsNewStart(job, event)) {
    return InvalidArgumentError(
        fmt::format("rank {} says that the world has {} ranks; incarnation {} of job '{}' has {}",
                    event.rank.value, event.world, job.incarnation.value, job.name, current.world));
  }
  return Status::Ok();
}

void State::On(const RankJoined& event) {
  NodeIndex node = kNoNode;
  Status status = CheckJoin(event, node);
  if (!status.ok()) return Answer(event.request, std::move(status));
  auto found = jobs_.find(event.job);
  if (found == jobs_.end()) {
    found = jobs_.try_emplace(event.job).first;
    found->second.name = event.job;
    found->second.uid = event.uid;
    if (auto forgotten = forgotten_.find(event.job); forgotten != forgotten_.end()) {
      // What is left of it somewhere is known by its incarnation.
      found->second.incarnation = found->second.forgotten_upto = forgotten->second.upto;
      forgotten_.erase(forgotten);
    }
    OpenIncarnation(found->second, event);
  } else {
    Job& job = found->second;
    if (job.uid == kNobodyYet) job.uid = event.uid;
    status = CheckRun(job, event);
    if (!status.ok()) return Answer(event.request, std::move(status));
    if (IsNewStart(job, event) && !StillRunning(job, event).empty()) {
      job.waiting_joins.push_back({event, at_.now + options_.rejoin_wait});
      return;
    }
    if (job.lineage().run_id != event.run_id || IsNewStart(job, event)) OpenIncarnation(job, event);
  }
  AdmitRank(found->second, event, node);
}

/// A start under the run id of the one before it: a launcher that gives none of its own to the
/// restarts of a job. The process is new, its rank was here already, and steps were saved; without
/// those there is nothing that a new incarnation is needed for.
bool State::IsNewStart(const Job& job, const RankJoined& event) const {
  if (job.lineage().run_id != event.run_id) return false;
  if (event.start == JoinStart::kNotSaid) return false;
  // Else it was here before in a start that this store has forgotten.
  if (IsPartOfRun(job, event)) return event.incarnation_before > job.incarnation;
  if (job.newest_seen.value == 0) return false;
  if (event.world != job.lineage().world) return true;
  if (job.rank_nodes[event.rank.value] != kNoNode) return true;
  // After a restart of this coordinator: its shards tell.
  return std::any_of(job.versions.begin(), job.versions.end(), [&](const auto& entry) {
    return entry.first.incarnation == job.incarnation &&
           (entry.second.tiers != 0 || entry.second.ranks[event.rank.value].known);
  });
}

/// Ranks of the current incarnation that are connected to their agents, beside this one's; empty:
/// none.
std::string State::StillRunning(const Job& job, const RankJoined& event) const {
  constexpr size_t kRunningNamed = 8;
  std::string text;
  size_t count = 0;
  for (const auto& [rank, index] : job.connected) {
    const Node& node = nodes_[index];
    // The agent of a process that joins has made sure that the one before it is gone.
    if (!node.attached || (rank == event.rank && node.name == event.node)) continue;
    if (++count > kRunningNamed) continue;
    text += fmt::format("{}rank {} on node {}", text.empty() ? "" : ", ", rank.value, node.name);
  }
  if (count > kRunningNamed) text += fmt::format(" and {} more", count - kRunningNamed);
  return text;
}

/// Answers those that wait for the end of the start before them: the first opens an incarnation,
/// the others find it open.
void State::AdvanceJoins(Job& job) {
  if (job.waiting_joins.empty()) return;
  std::vector<RankJoined> ready;
  std::erase_if(job.waiting_joins, [&](const WaitingJoin& waiting) {
    const RankJoined& event = waiting.event;
    const std::string running = IsNewStart(job, event) ? StillRunning(job, event) : "";
    if (running.empty()) {
      ready.push_back(event);
      return true;
    }
    if (at_.now < waiting.deadline) return false;
    Answer(event.request,
           FailedPreconditionError(fmt::format(
               "run '{}' of job '{}' has trained to step {} and still runs: {}; end it, or give "
               "this start a run id of its own (HOLDFAST_RUN_ID)",
               event.run_id, job.name, job.newest_seen.value, running)));
    return true;
  });
  for (const RankJoined& event : ready) On(event);
}

void State::AdmitRank(Job& job, const RankJoined& event, NodeIndex node) {
  job.joined_at = at_.now;
  job.alive_at = at_.now;
  job.goodbyes.erase(event.rank);
  SetPhase(job, JobPhase::kRunning);
  Place(job, event.rank, node);
  if (event.slot_bytes != 0) job.slot_bytes[event.rank.value] = event.slot_bytes;
  PlanPeers(job);
  Reply reply;
  reply.request = event.request;
  reply.incarnation = job.incarnation;
  if (event.request != 0) effects_.emplace_back(std::move(reply));
}

Incarnation State::HighestReported(const std::string& job) const {
  Incarnation highest;
  for (const Node& node : nodes_) {
    auto found = node.reported.find(job);
    if (found != node.reported.end()) highest = std::max(highest, found->second);
  }
  return highest;
}

void State::OpenIncarnation(Job& job, const RankJoined& event) {
  // What an earlier incarnation has at peer is worth waiting for until this one has replaced it.
  bool floor_before = false;
  if (!job.lineages.empty()) {
    const VersionId floor = PeerFloor(job);
    floor_before = floor.incarnation.value != 0 && floor.incarnation < job.incarnation;
    const Status fenced = FencedError(
        fmt::format("incarnation {} of job '{}' started", job.incarnation.value + 1, job.name));
    RefuseAsks(job, fenced);
    for (const RestoreAsk& ask : job.plan.rollbacks) Answer(ask.request, fenced);
  }
  // Nodes of an incarnation that never committed add to those that may still hold something.
  bool committed_any = false;
  for (const auto& [id, version] : job.versions) {
    committed_any = committed_any || (id.incarnation == job.incarnation && version.committed());
  }
  if (committed_any && !floor_before) job.nodes_before.clear();
  job.nodes_before.insert(job.nodes_now.begin(), job.nodes_now.end());
  job.nodes_now.clear();
  // Beyond all that any node has of the job: a store that was lost or replaced by an older copy of
  // itself must not give a number twice, else versions of before would pass for this start's.
  job.incarnation = std::max(job.incarnation, HighestReported(job.name));
  job.incarnation = Incarnation{job.incarnation.value + 1};
  job.abort_floor = Step{0};
  job.disputes.clear();  // all ranks begin with what they restore
  job.newest_seen = Step{0};
  job.disk_target.Restart(Step{0});
  job.peer_target.Restart(Step{0});
  job.connected.clear();
  job.goodbyes.clear();
  job.wanted = {};
  job.newest_at = at_.now;

  LineageRecord lineage;
  lineage.job = job.name;
  lineage.incarnation = job.incarnation;
  lineage.run_id = event.run_id;
  lineage.world = event.world;
  lineage.life = options_.life;
  job.lineages[job.incarnation] = lineage;
  job.rank_nodes.assign(event.world, kNoNode);
  job.slot_bytes.assign(event.world, 0);
  job.ranks_joined = 0;
  for (RestoreLeg& leg : job.plan.legs) ResetLeg(job, leg);
  job.plan = {};
  job.plan.open = true;
  // What was in doubt is decided now: an older incarnation never commits a new version.
  for (auto& [id, version] : job.versions) {
    if (version.phase == Phase::kPending) Abort(job, version, false);
  }
  effects_.emplace_back(PutLineage{lineage});
  ForgetPlans(job);
  effects_.emplace_back(PutJob{RecordOf(job)});
  job.changed = true;
  job.word_changed = true;
}

void State::Place(Job& job, Rank rank, NodeIndex node) {
  NodeIndex& place = job.rank_nodes[rank.value];
  if (place == kNoNode) ++job.ranks_joined;
  if (place != node && rank.value < job.plan.legs.size()) {
    ResetLeg(job, job.plan.legs[rank.value]);
  }
  place = node;
  if (job.audience.insert(node).second) job.word_to.insert(node);
  if (job.nodes_now.insert(node).second) effects_.emplace_back(PutJob{RecordOf(job)});
  job.changed = true;
}

}  // namespace holdfast::coord
