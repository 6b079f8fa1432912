#include "coordinator/state/state.h"

#include <fmt/format.h>

#include <algorithm>

#include "coordinator/state/peers.h"

namespace holdfast::coord {
namespace {
// What is missing somewhere is counted again so often although nothing happened.
constexpr auto kCountAgain = std::chrono::seconds(1);
}  // namespace

RankShard* VersionState::Shard(Rank rank) {
  std::vector<RankShard>& shards = IsParity(rank) ? parity : ranks;
  const uint32_t index = IsParity(rank) ? ParityNode(rank) : rank.value;
  return index < shards.size() ? &shards[index] : nullptr;
}

bool VersionState::AddCopy(Rank rank, Copy copy) {
  RankShard& shard = *Shard(rank);
  bool at_tier = false;
  for (const Copy& other : shard.copies) {
    if (other == copy) return false;
    at_tier = at_tier || other.tier == copy.tier;
  }
  if (!at_tier) ++(IsParity(rank) ? parity_held : held)[static_cast<size_t>(copy.tier)];
  if (shard.copies.empty() && !IsParity(rank)) ++held_any;
  shard.copies.push_back(copy);
  shard.last_node = copy.node;
  whole.reset();
  return true;
}

bool VersionState::RemoveCopy(Rank rank, Copy copy) {
  RankShard* shard = Shard(rank);
  if (shard == nullptr) return false;
  std::vector<Copy>& copies = shard->copies;
  auto found = std::find(copies.begin(), copies.end(), copy);
  if (found == copies.end()) return false;
  copies.erase(found);
  whole.reset();
  bool at_tier = std::any_of(copies.begin(), copies.end(),
                             [&](const Copy& other) { return other.tier == copy.tier; });
  if (!at_tier) --(IsParity(rank) ? parity_held : held)[static_cast<size_t>(copy.tier)];
  if (copies.empty() && !IsParity(rank)) --held_any;
  return true;
}

DamagedCopy* VersionState::Damaged(Rank rank, Copy copy) {
  auto found = std::find_if(damaged.begin(), damaged.end(), [&](const DamagedCopy& bad) {
    return bad.rank == rank && bad.copy == copy;
  });
  return found == damaged.end() ? nullptr : &*found;
}

bool VersionState::IsReadable(Rank rank, Copy copy) const {
  return std::any_of(damaged.begin(), damaged.end(), [&](const DamagedCopy& bad) {
    return bad.readable && bad.rank == rank && bad.copy == copy;
  });
}

namespace {
Status BadRecords(std::string text) {
  return DataLossError("the metadata store contradicts itself: " + std::move(text));
}

/// Every rank of the world is in the image of one node, and no node is there twice.
bool IsPlan(const LineageRecord& lineage) {
  std::vector<bool> seated(lineage.world);
  std::set<std::string> nodes;
  uint32_t ranks = 0;
  for (const PlannedGroup& group : lineage.peers) {
    if (group.parity == 0 || group.parity >= group.members.size()) return false;
    for (const PlannedMember& member : group.members) {
      if (!nodes.insert(member.node).second) return false;
      for (const PeerRank& rank : member.ranks) {
        if (rank.rank.value >= lineage.world || seated[rank.rank.value]) return false;
        seated[rank.rank.value] = true;
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
  // Requests of an earlier epoch are never taken for ours.
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
    job.audience = job.nodes_now;
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
    if (!job.lineage().peers.empty() && job.seats_of(job.incarnation) == nullptr) {
      state.SeatPeers(job, job.incarnation);
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
  if (job == jobs_.end() || record.incarnation > job->second.incarnation || !IsPlan(record)) {
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
    if (job.seats_of(lineage->first) == nullptr) SeatPeers(job, lineage->first);
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
    // Records come in order: the newest says what is disputed now.
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
  Settle();
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

Node* State::Find(const std::string& name) {
  auto found = node_names_.find(name);
  return found == node_names_.end() ? nullptr : &nodes_[found->second];
}

void State::Say(NodeIndex node, Directive directive) {
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

void State::Find(const std::string& job, NodeIndex node, Status what) {
  std::string name = node == kNoNode ? "" : nodes_[node].name;
  effects_.emplace_back(Finding{job, std::move(name), std::move(what)});
}

/// A node that is away may be taken by any agent: its disks may be new, its counter with them.
Status State::CheckAgent(const NodeAttached& event, Node& node) {
  if (!node.attached) return Status::Ok();
  // Older agents have no id: what they are is told by their starts alone.
  const bool both_known = event.agent_id != 0 && node.agent_id != 0;
  if (both_known && event.agent_id != node.agent_id) {
    node.rival = event.data_address;
    node.rival_seen = at_.now;
    return FencedError(fmt::format(
        "another agent of node '{}' is attached, from {}: two agents have one node name. Give each "
        "a `node` of its own; if this one replaces the other, stop the other",
        event.node, node.data_address));
  }
  if (event.agent_start >= node.agent_start) return Status::Ok();
  return FencedError(
      fmt::format("a newer agent of node {} has taken over; stop this one", event.node));
}

void State::On(const NodeAttached& event) {
  auto refuse = [&](Status why) {
    effects_.emplace_back(CloseAttach{event.attach, std::move(why)});
  };
  const bool same_life =
      event.life_seen.value == 0 || event.life_seen == options_.life || options_.life.value == 0;
  if (same_life && event.epoch_seen > options_.epoch) {
    const Status why = FencedError(fmt::format(
        "agent of node {} has seen epoch {}, this coordinator is at {}: its data_dir is an older "
        "copy, or a newer coordinator runs elsewhere; docs/backup.md says how to go on",
        event.node, event.epoch_seen.value, options_.epoch.value));
    ShowRefused(event, why);
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
  const bool news = !node.attached || node.peer_address != event.peer_address;
  DropCopiesOf(index);
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
  Say(index, Welcome{options_.life});
  // Its parity counts where it has its place.
  for (auto& [name, job] : jobs_) RehomeLost(job);
  HearRanks(index, event.ranks);
  RecallForgotten(index, event.holdings);
  AddHoldings(index, Claimed(event.holdings, event.life_seen), true);
  if (const size_t aside = nodes_[index].other_lives.size(); aside != 0) {
    Find("", index,
         FailedPreconditionError(fmt::format(
             "{} copies are not of this life of the coordinator's store: they are kept and do not "
             "count; 'holdfast adopt --dry-run' shows what can be taken",
             aside)));
  }
  ForgetRepairsOf(index);
  for (auto& [name, job] : jobs_) {
    LegsOfLostNode(job, index, same_agent);
    if (job.nodes_now.count(index) != 0) job.audience.insert(index);
    if (job.audience.count(index) != 0) job.word_to.insert(index);
    job.changed = true;
  }
  if (news) TellGroupsOf(index);
}

void State::On(const NodeDetached& event) {
  Node* node = Find(event.node);
  if (node == nullptr || !node->attached || node->attach != event.attach) return;
  node->stream_ended = at_.now;
}

void State::On(const NodeLost& event) {
  auto found = node_names_.find(event.node);
  if (found != node_names_.end()) Lose(found->second, "out of reach", false);
}

void State::Lose(NodeIndex index, std::string_view why, bool silent) {
  Node& node = nodes_[index];
  if (!node.attached) return;
  effects_.emplace_back(CloseAttach{
      node.attach, UnavailableError(fmt::format("node {} counts as lost: {}", node.name, why))});
  node.attached = false;
  node.stream_ended.reset();
  node.lost_at = at_.now;
  DropCopiesOf(index);
  Find("", index, UnavailableError(fmt::format("node lost: {}", why)));
  effects_.emplace_back(NodeGone{node.name, std::string(why), silent});
  ForgetRepairsOf(index);
  std::erase_if(ordered_, [index](const auto& entry) { return entry.second.target == index; });
  for (auto& [name, job] : jobs_) {
    LegsOfLostNode(job, index, false);
    job.changed = true;
  }
  TellGroupsOf(index);
}

void State::DropCopiesOf(NodeIndex node) {
  nodes_[node].other_lives.clear();
  for (auto& [name, job] : jobs_) {
    for (auto& [id, version] : job.versions) {
      version.RemoveCopiesIf([node](const Copy& copy) { return copy.node == node; });
    }
  }
}

void State::On(const NodeReported& event) {
  Node* node = Find(event.node);
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
  HearRanks(index, event.ranks);
  for (const Gone& gone : event.gone) OnGone(index, gone);
  AddHoldings(index, Claimed(event.holdings, {}), false);
  for (const Missing& missing : event.missing) OnMissing(index, missing);
  for (const Prepared& prepared : event.prepared) OnPrepared(index, prepared);
  for (const TierWanted& wanted : event.wanted) HearWanted(wanted);
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
  if (event.resumed) patient_until_ = at_.now + options_.node_lease;
  const bool patient = at_.now < patient_until_;
  for (NodeIndex index = 0; index < nodes_.size(); ++index) {
    Node& node = nodes_[index];
    if (!node.attached || patient) continue;
    if (node.stream_ended && at_.now - *node.stream_ended >= options_.detach_grace) {
      Lose(index, "its stream ended", false);
    } else if (at_.now - node.seen >= options_.node_lease) {
      Lose(index, "no word from its agent for a whole lease", !node.stream_ended);
    } else if (node.probed < node.seen && at_.now - node.seen >= 2 * options_.node_lease / 5) {
      // A machine that is off or cut does not acknowledge this, and its stream ends.
      node.probed = at_.now;
      Say(index, Welcome{options_.life});
    }
  }
  std::vector<Job*> expired;
  for (auto& [name, job] : jobs_) {
    if (job.plan.open || job.retention_due) job.changed = true;
    const bool count_again = !job.lacking.empty() && at_.now - job.lacking_at >= kCountAgain;
    if (!job.repairs.empty() || count_again) job.repair_due = true;
    AdvanceLife(job);
    AdvanceJoins(job);
    const bool over = job.phase != JobPhase::kRunning && options_.forget_after.count() != 0 &&
                      at_.now - job.ended_at >= options_.forget_after;
    if (over) expired.push_back(&job);
  }
  for (Job* job : expired) Forget(*job, nullptr);
}

void State::Settle() {
  SayForgotten();
  for (auto& [name, job] : jobs_) {
    if (job.changed || job.word_changed || !job.word_to.empty() || job.repair_due) Settle(job);
  }
}

void State::Settle(Job& job) {
  if (job.changed) {
    AdvancePlan(job);
    Retain(job);
    AdvanceTargets(job);
    job.changed = false;
  }
  SendWords(job);
  if (job.repair_due) AdvanceRepairs(job);
  for (const auto& [node, version] : job.remove_disk) {
    Say(node, RemoveOrder{job.name, version, Tier::kDisk});
  }
  job.remove_disk.clear();
}

/// Each node gets the same word but for its group.
void State::SendWords(Job& job) {
  if (job.word_changed) job.word_to.insert(job.audience.begin(), job.audience.end());
  if (!job.word_to.empty()) {
    const JobWord common = WordOn(job);
    const PeerSeats* seats = job.seats_of(job.incarnation);
    for (NodeIndex node : job.word_to) {
      if (!nodes_[node].attached) continue;
      JobWord word = common;
      if (seats != nullptr && seats->by_node.count(node) != 0) {
        const uint32_t group = seats->seats[seats->by_node.at(node)].group;
        word.group = GroupOf(job, job.incarnation, group, nullptr);
      }
      Say(node, std::move(word));
    }
  }
  job.word_changed = false;
  job.word_to.clear();
}

JobWord State::WordOn(const Job& job) const {
  JobWord word;
  word.job = job.name;
  word.incarnation = job.incarnation;
  word.memory_committed = NewestCommitted(job, Tier::kMemory);
  word.disk_committed = NewestCommitted(job, Tier::kDisk);
  for (const auto& [id, version] : job.versions) {
    if (version.phase == Phase::kAborted) word.aborted.push_back(id);
  }
  word.disk_target_step = job.disk_target.step();
  word.peer_committed = PeerFloor(job);
  word.peer_target_step = job.peer_target.step();
  if (job.lineage().decision == Decision::kVersion) word.restore = job.lineage().restored;
  word.phase = job.phase;
  word.release = job.released;
  return word;
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
