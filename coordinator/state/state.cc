#include "coordinator/state/state.h"

#include <fmt/format.h>

#include <algorithm>

#include "coordinator/state/peers.h"

namespace holdfast::coord {
namespace {
// How often under-protected versions are counted again although no event changed them.
constexpr auto kCountInterval = std::chrono::seconds(1);
}  // namespace

RankShard* VersionState::Shard(Rank rank) {
  std::vector<RankShard>& shards = IsParity(rank) ? parity : ranks;
  const uint32_t index = IsParity(rank) ? ParityNode(rank) : rank.value;
  return index < shards.size() ? &shards[index] : nullptr;
}

bool VersionState::AddReplica(Rank rank, Replica replica) {
  RankShard& shard = *Shard(rank);
  bool at_tier = false;
  for (const Replica& other : shard.replicas) {
    if (other == replica) return false;
    at_tier = at_tier || other.tier == replica.tier;
  }
  if (!at_tier) ++(IsParity(rank) ? parity_held : held)[static_cast<size_t>(replica.tier)];
  if (shard.replicas.empty() && !IsParity(rank)) ++held_any;
  shard.replicas.push_back(replica);
  shard.last_node = replica.node;
  fully_available.reset();
  return true;
}

bool VersionState::RemoveReplica(Rank rank, Replica replica) {
  RankShard* shard = Shard(rank);
  if (shard == nullptr) return false;
  std::vector<Replica>& replicas = shard->replicas;
  auto found = std::find(replicas.begin(), replicas.end(), replica);
  if (found == replicas.end()) return false;
  replicas.erase(found);
  fully_available.reset();
  bool at_tier = std::any_of(replicas.begin(), replicas.end(),
                             [&](const Replica& other) { return other.tier == replica.tier; });
  if (!at_tier) --(IsParity(rank) ? parity_held : held)[static_cast<size_t>(replica.tier)];
  if (replicas.empty() && !IsParity(rank)) --held_any;
  return true;
}

DamagedReplica* VersionState::Damaged(Rank rank, Replica replica) {
  auto found = std::find_if(damaged.begin(), damaged.end(), [&](const DamagedReplica& bad) {
    return bad.rank == rank && bad.replica == replica;
  });
  return found == damaged.end() ? nullptr : &*found;
}

bool VersionState::IsReadable(Rank rank, Replica replica) const {
  return std::any_of(damaged.begin(), damaged.end(), [&](const DamagedReplica& bad) {
    return bad.readable && bad.rank == rank && bad.replica == replica;
  });
}

namespace {
Status BadRecords(std::string text) {
  return DataLossError("the metadata store contradicts itself: " + std::move(text));
}

/// Whether each rank of the world is in the image of exactly one member, and no node is a member
/// twice.
bool IsValidPlan(const LineageRecord& lineage) {
  std::vector<bool> placed(lineage.world);
  std::set<std::string> nodes;
  uint32_t ranks = 0;
  for (const PlannedGroup& group : lineage.peers) {
    if (group.parity == 0 || group.parity >= group.members.size()) return false;
    for (const PlannedMember& member : group.members) {
      if (!nodes.insert(member.node).second) return false;
      for (const PlanRank& rank : member.ranks) {
        if (rank.rank.value >= lineage.world || placed[rank.rank.value]) return false;
        placed[rank.rank.value] = true;
        ++ranks;
      }
    }
  }
  return lineage.peers.empty() || ranks == lineage.world;
}
}  // namespace

Result<State> State::Load(const StateOptions& options, const Records& records, Instant at) {
  State state(options);
  state.at_ = at;
  // Request numbers of different epochs never collide.
  state.next_prepare_ = options.epoch.value << 32;
  for (const JobRecord& record : records.jobs) {
    if (record.forgotten_upto == record.incarnation && record.incarnation.value != 0) {
      ForgottenJob& forgotten = state.forgotten_[record.job];
      forgotten.upto = record.forgotten_upto;
      for (const std::string& node : record.nodes_before) {
        forgotten.left[state.Intern(node)] = std::nullopt;
      }
      continue;
    }
    Job& job = state.jobs_[record.job];
    job.name = record.job;
    job.uid = record.uid;
    job.incarnation = record.incarnation;
    job.abort_floor = record.abort_floor;
    for (const std::string& node : record.nodes_now) job.nodes_now.insert(state.Intern(node));
    for (const std::string& node : record.nodes_before) job.nodes_before.insert(state.Intern(node));
    job.subscribers = job.nodes_now;
    job.joined_at = at.now;
    job.finished = record.finished;
    job.keep_last = record.keep_last;
    job.keep_every = record.keep_every;
    job.forgotten_upto = record.forgotten_upto;
    job.ended_wall_nanos = record.ended_wall_nanos;
    job.alive_at = job.newest_at = job.ended_at = at.now;
  }
  for (const RunRecord& record : records.runs) {
    if (!HasEnded(record.phase)) state.active_runs_.insert(record.spec.job);
  }
  for (const LineageRecord& record : records.lineages) {
    HOLDFAST_RETURN_IF_ERROR(state.LoadLineage(record));
  }
  for (const VersionRecord& record : records.versions) {
    HOLDFAST_RETURN_IF_ERROR(state.LoadVersion(record));
  }
  for (auto& [name, job] : state.jobs_) {
    if (job.lineages.count(job.incarnation) == 0) {
      return Fail(
          BadRecords(fmt::format("job {} has no incarnation {}", name, job.incarnation.value)));
    }
    job.rank_nodes.assign(job.lineage().world, kNoNode);
    job.slot_bytes.assign(job.lineage().world, 0);
    if (!job.lineage().peers.empty() && job.groups_of(job.incarnation) == nullptr) {
      state.IndexGroups(job, job.incarnation);
    }
    job.plan.open = job.lineage().decision != Decision::kFresh;
    if (job.newest_seen.value == 0) continue;
    job.disk_target.Restart(Step{job.newest_seen.value + 1});
    job.peer_target.Restart(Step{job.newest_seen.value + 1});
  }
  return state;
}

Status State::LoadLineage(const LineageRecord& record) {
  auto job = jobs_.find(record.job);
  if (job == jobs_.end() || record.incarnation > job->second.incarnation || !IsValidPlan(record)) {
    return BadRecords(
        fmt::format("incarnation {} of job {}", record.incarnation.value, record.job));
  }
  job->second.lineages[record.incarnation] = record;
  return Status::Ok();
}

Status State::LoadVersion(const VersionRecord& record) {
  const auto bad = [&record] {
    return BadRecords(fmt::format("version {} of job {}", ToString(record.version), record.job));
  };
  auto found = jobs_.find(record.job);
  if (found == jobs_.end() || record.world == 0 || record.world > kWorldMax ||
      (!record.digests.empty() && record.digests.size() != record.world)) {
    return bad();
  }
  Job& job = found->second;
  auto lineage = job.lineages.find(record.version.incarnation);
  if (lineage != job.lineages.end() && !lineage->second.peers.empty()) {
    if (record.world != lineage->second.world) return bad();
    if (job.groups_of(lineage->first) == nullptr) IndexGroups(job, lineage->first);
  }
  VersionState& version = Create(job, record.version, record.world, record.phase);
  if (version.parity.size() < record.parity_digests.size()) return bad();
  version.tiers = record.tiers;
  version.failed_tiers = record.failed_tiers;
  version.pinned = record.pinned;
  version.recorded = true;
  version.wall_nanos = record.wall_nanos;
  version.bytes = record.bytes;
  version.disputes = record.disputes;
  if (record.version.incarnation == job.incarnation && version.committed()) {
    // Records come in version order: the newest version has the current disputes.
    job.disputes = record.disputes;
  }
  version.adopted_from = record.adopted_from;
  if (record.adopted_from.value != 0) job.adopted_lives.insert(record.adopted_from);
  const auto know = [](RankShard& shard, uint64_t digest) {
    shard.known = true;
    shard.digest = digest;
  };
  for (size_t i = 0; i < record.digests.size(); ++i) know(version.ranks[i], record.digests[i]);
  for (size_t i = 0; i < record.parity_digests.size(); ++i) {
    know(version.parity[i], record.parity_digests[i]);
  }
  if (record.version.incarnation == job.incarnation) {
    job.newest_seen = std::max(job.newest_seen, record.version.step);
  }
  return Status::Ok();
}

std::vector<Effect> State::Apply(const Event& event, Instant at) {
  effects_.clear();
  at_ = at;
  std::visit([this](const auto& e) { On(e); }, event);
  ApplyChanges();
  return std::move(effects_);
}

NodeIndex State::Intern(const std::string& name) {
  auto [found, inserted] = node_names_.try_emplace(name, static_cast<NodeIndex>(nodes_.size()));
  if (inserted) {
    nodes_.push_back({});
    nodes_.back().name = name;
    nodes_.back().lost_at = at_.now;
  }
  return found->second;
}

Node* State::FindNode(const std::string& name) {
  auto found = node_names_.find(name);
  return found == node_names_.end() ? nullptr : &nodes_[found->second];
}

void State::SendDirective(NodeIndex node, Directive directive) {
  if (!nodes_[node].attached) return;
  effects_.emplace_back(Send{nodes_[node].attach, std::move(directive)});
}

void State::Answer(RequestId request, Status outcome) {
  if (request == 0) return;
  Reply reply;
  reply.request = request;
  reply.outcome = std::move(outcome);
  effects_.emplace_back(std::move(reply));
}

void State::RecordFinding(const std::string& job, NodeIndex node, Status what) {
  std::string name = node == kNoNode ? "" : nodes_[node].name;
  effects_.emplace_back(Finding{job, std::move(name), std::move(what)});
}

/// Any agent may attach as a node that is not attached: the disks may be new, and the agent's start
/// counter with them.
Status State::CheckAgent(const NodeAttached& event, Node& node) {
  if (!node.attached) return Status::Ok();
  // Older agents send no ID: only their start counters are compared.
  const bool both_known = event.agent_id != 0 && node.agent_id != 0;
  if (both_known && event.agent_id != node.agent_id) {
    node.rival = event.data_address;
    node.rival_seen = at_.now;
    return FencedError(fmt::format(
        "another agent of node '{}' is attached, from {}: two agents have one node name. Give each "
        "its own `node`; if this one replaces the other, stop the other",
        event.node, node.data_address));
  }
  if (event.agent_start >= node.agent_start) return Status::Ok();
  return FencedError(
      fmt::format("a newer agent of node {} is attached; stop this one", event.node));
}

void State::On(const NodeAttached& event) {
  auto refuse = [&](Status why) {
    effects_.emplace_back(CloseAttach{event.attach, std::move(why)});
  };
  const bool same_life =
      event.life_seen.value == 0 || event.life_seen == options_.life || options_.life.value == 0;
  if (same_life && event.epoch_seen > options_.epoch) {
    const Status why = FencedError(fmt::format(
        "agent of node {} has seen epoch {}, this coordinator is at {}: the coordinator's data_dir "
        "is an older copy, or a newer coordinator runs elsewhere; see docs/backup.md",
        event.node, event.epoch_seen.value, options_.epoch.value));
    RecordRefused(event, why);
    return refuse(why);
  }
  NodeIndex index = Intern(event.node);
  Node& node = nodes_[index];
  Status admitted = CheckAgent(event, node);
  if (!admitted.ok()) return refuse(std::move(admitted));
  if (node.attached) {
    Status why = event.agent_start > node.agent_start
                     ? FencedError(fmt::format("a newer agent of node {} attached", event.node))
                     : CancelledError("the agent attached again");
    effects_.emplace_back(CloseAttach{node.attach, std::move(why)});
  }
  const bool same_agent = event.agent_start == node.agent_start && event.agent_id == node.agent_id;
  const bool group_changed = !node.attached || node.peer_address != event.peer_address;
  DropReplicasOf(index);
  refused_.erase(event.node);
  node.attached = true;
  node.attach = event.attach;
  node.agent_start = event.agent_start;
  node.agent_id = event.agent_id;
  node.data_address = event.data_address;
  node.peer_address = event.peer_address;
  node.labels = event.labels;
  node.health = event.health;
  node.seen = at_.now;
  node.seen_wall_nanos = at_.wall_nanos;
  node.stream_ended.reset();
  node.disk_every = event.disk_every;
  SendDirective(index, Welcome{options_.life});
  // Before its replicas are counted: parity counts only for the node that is the member now.
  for (auto& [name, job] : jobs_) RehomeLost(job);
  OnRanks(index, event.ranks);
  RecordForgottenReplicas(index, event.replicas);
  OnReplicasStored(index, AssignLife(event.replicas, event.life_seen), true);
  if (const size_t quarantined = nodes_[index].other_lives.size(); quarantined != 0) {
    RecordFinding(
        "", index,
        FailedPreconditionError(fmt::format(
            "{} replicas are not of this life of the coordinator's store: they are kept and do not "
            "count; 'holdfast adopt --dry-run' shows which versions can be adopted",
            quarantined)));
  }
  CancelRepairsOf(index);
  for (auto& [name, job] : jobs_) {
    FailRestoreTasksOf(job, index, same_agent);
    if (job.nodes_now.count(index) != 0) job.subscribers.insert(index);
    if (job.subscribers.count(index) != 0) job.job_state_to.insert(index);
    job.changed = true;
  }
  if (group_changed) SendGroupsOf(index);
}

void State::On(const NodeDetached& event) {
  Node* node = FindNode(event.node);
  if (node == nullptr || !node->attached || node->attach != event.attach) return;
  node->stream_ended = at_.now;
}

void State::On(const NodeLost& event) {
  auto found = node_names_.find(event.node);
  if (found != node_names_.end()) MarkLost(found->second, "out of reach", false);
}

void State::MarkLost(NodeIndex index, std::string_view why, bool silent) {
  Node& node = nodes_[index];
  if (!node.attached) return;
  effects_.emplace_back(CloseAttach{
      node.attach, UnavailableError(fmt::format("node {} counts as lost: {}", node.name, why))});
  node.attached = false;
  node.stream_ended.reset();
  node.lost_at = at_.now;
  DropReplicasOf(index);
  RecordFinding("", index, UnavailableError(fmt::format("node lost: {}", why)));
  effects_.emplace_back(NodeDeclaredLost{node.name, std::string(why), silent});
  CancelRepairsOf(index);
  std::erase_if(pending_prepares_,
                [index](const auto& entry) { return entry.second.target == index; });
  for (auto& [name, job] : jobs_) {
    FailRestoreTasksOf(job, index, false);
    job.changed = true;
  }
  SendGroupsOf(index);
}

void State::DropReplicasOf(NodeIndex node) {
  nodes_[node].other_lives.clear();
  for (auto& [name, job] : jobs_) {
    for (auto& [id, version] : job.versions) {
      version.RemoveReplicasIf([node](const Replica& replica) { return replica.node == node; });
    }
  }
}

void State::On(const NodeReported& event) {
  Node* node = FindNode(event.node);
  if (node == nullptr || !node->attached || node->agent_start != event.agent_start ||
      event.epoch != options_.epoch) {
    return Answer(event.request,
                  FencedError(fmt::format("node {} is not attached to epoch {} with this agent; "
                                          "attach again",
                                          event.node, options_.epoch.value)));
  }
  node->seen = at_.now;
  node->seen_wall_nanos = at_.wall_nanos;
  node->health = event.health;
  NodeIndex index = node_names_.at(event.node);
  OnRanks(index, event.ranks);
  for (const RemovedReplica& removed : event.removed) OnReplicaRemoved(index, removed);
  OnReplicasStored(index, AssignLife(event.replicas, {}), false);
  for (const FailedReplica& failed : event.failed) OnReplicaFailed(index, failed);
  for (const Prepared& prepared : event.prepared) OnPrepared(index, prepared);
  for (const TierWanted& wanted : event.wanted) OnTierWanted(wanted);
  for (auto& [name, job] : jobs_) AdvanceJoins(job);
  Answer(event.request, Status::Ok());
}

void State::On(const PinSet& event) {
  auto found = jobs_.find(event.job);
  if (found == jobs_.end()) {
    return Answer(event.request, NotFoundError(fmt::format("no job '{}'", event.job)));
  }
  Job& job = found->second;
  const bool newest = event.version.incarnation.value == 0;
  const VersionId wanted = newest ? NewestCommitted(job, Tier::kDisk) : event.version;
  auto version = job.versions.find(wanted);
  if (version == job.versions.end() || !version->second.committed()) {
    return Answer(event.request,
                  NotFoundError(newest ? fmt::format("job {} has no version on disk yet", event.job)
                                       : fmt::format("job {} has no committed version {}",
                                                     event.job, ToString(wanted))));
  }
  if (event.pinned && !version->second.committed_at(Tier::kDisk)) {
    return Answer(event.request,
                  FailedPreconditionError(fmt::format(
                      "version {} is not on disk yet; only versions on disk can be pinned",
                      ToString(wanted))));
  }
  if (version->second.pinned != event.pinned) {
    version->second.pinned = event.pinned;
    Store(job, version->second, 0);
    job.retention_due = true;
    job.changed = true;
  }
  if (event.request == 0) return;
  Reply reply;
  reply.request = event.request;
  reply.version = wanted;
  effects_.emplace_back(std::move(reply));
}

void State::On(const Tick& event) {
  if (event.resumed) no_loss_until_ = at_.now + options_.node_lease;
  const bool resumed = at_.now < no_loss_until_;
  for (NodeIndex index = 0; index < nodes_.size(); ++index) {
    Node& node = nodes_[index];
    if (!node.attached || resumed) continue;
    if (node.stream_ended && at_.now - *node.stream_ended >= options_.detach_grace) {
      MarkLost(index, "its stream ended", false);
    } else if (at_.now - node.seen >= options_.node_lease) {
      MarkLost(index, "no report from its agent for a full lease", !node.stream_ended);
    } else if (node.probed < node.seen && at_.now - node.seen >= 2 * options_.node_lease / 5) {
      // If the machine is off or unreachable it does not acknowledge this, and the stream ends.
      node.probed = at_.now;
      SendDirective(index, Welcome{options_.life});
    }
  }
  std::vector<Job*> expired;
  for (auto& [name, job] : jobs_) {
    if (job.plan.open || job.retention_due) job.changed = true;
    const bool count_due =
        !job.under_protected.empty() && at_.now - job.under_protected_counted_at >= kCountInterval;
    if (!job.repairs.empty() || count_due) job.repair_due = true;
    AdvanceLife(job);
    AdvanceJoins(job);
    const bool forget = job.phase != JobPhase::kRunning && options_.forget_after.count() != 0 &&
                        at_.now - job.ended_at >= options_.forget_after;
    if (forget) expired.push_back(&job);
  }
  for (Job* job : expired) Forget(*job, nullptr);
}

void State::ApplyChanges() {
  SendForgotten();
  for (auto& [name, job] : jobs_) {
    if (job.changed || job.job_state_changed || !job.job_state_to.empty() || job.repair_due) {
      ApplyChanges(job);
    }
  }
}

void State::ApplyChanges(Job& job) {
  if (job.changed) {
    AdvancePlan(job);
    Retain(job);
    AdvanceTargets(job);
    job.changed = false;
  }
  SendJobStates(job);
  if (job.repair_due) AdvanceRepairs(job);
  for (const auto& [node, version] : job.remove_disk) {
    SendDirective(node, RemoveVersion{job.name, version, Tier::kDisk});
  }
  job.remove_disk.clear();
}

/// Sends the same job state to each node, except for the node's parity group.
void State::SendJobStates(Job& job) {
  if (job.job_state_changed) {
    job.job_state_to.insert(job.subscribers.begin(), job.subscribers.end());
  }
  if (!job.job_state_to.empty()) {
    const JobState common = JobStateOf(job);
    const GroupIndex* groups = job.groups_of(job.incarnation);
    for (NodeIndex node : job.job_state_to) {
      if (!nodes_[node].attached) continue;
      JobState job_state = common;
      if (groups != nullptr && groups->by_node.count(node) != 0) {
        const uint32_t group = groups->members[groups->by_node.at(node)].group;
        job_state.group = GroupOf(job, job.incarnation, group, nullptr);
      }
      SendDirective(node, std::move(job_state));
    }
  }
  job.job_state_changed = false;
  job.job_state_to.clear();
}

namespace {
/// Converts the state's "no version", incarnation 0, to that of messages.
std::optional<VersionId> Named(VersionId version) {
  return version.incarnation.value == 0 ? std::nullopt : std::optional(version);
}
}  // namespace

JobState State::JobStateOf(const Job& job) const {
  JobState job_state;
  job_state.job = job.name;
  job_state.incarnation = job.incarnation;
  job_state.memory_committed = Named(NewestCommitted(job, Tier::kMemory));
  job_state.disk_committed = Named(NewestCommitted(job, Tier::kDisk));
  for (const auto& [id, version] : job.versions) {
    if (version.phase == Phase::kAborted) job_state.aborted.push_back(id);
  }
  job_state.disk_target_step = job.disk_target.step();
  job_state.peer_committed = Named(PeerFloor(job));
  job_state.peer_target_step = job.peer_target.step();
  if (job.lineage().decision == Decision::kVersion) job_state.restore = job.lineage().restored;
  job_state.phase = job.phase;
  job_state.release = job.released;
  return job_state;
}

JobRecord State::RecordOf(const Job& job) const {
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
  for (NodeIndex node : job.nodes_now) record.nodes_now.push_back(nodes_[node].name);
  for (NodeIndex node : job.nodes_before) record.nodes_before.push_back(nodes_[node].name);
  return record;
}

}  // namespace holdfast::coord
