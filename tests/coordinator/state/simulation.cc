#include "tests/coordinator/state/simulation.h"

#include <fmt/format.h>

#include <algorithm>

namespace holdfast::coord {
namespace {
constexpr auto kLease = std::chrono::seconds(3);
}

Simulation::Simulation(uint64_t seed) : random_(seed) {
  options_.node_lease = kLease;
  options_.keep_last = 1 + static_cast<uint32_t>(random_.Below(3));
  options_.keep_every = random_.OneIn(2) ? 0 : 4;
  options_.peers.enabled = !random_.OneIn(8);
  options_.peers.groups.group_nodes = 2 + static_cast<uint32_t>(random_.Below(4));
  options_.peers.groups.parity = static_cast<uint32_t>(random_.Below(3));
  const size_t nodes = random_.OneIn(2) ? 1 + random_.Below(3) : 2 + random_.Below(5);
  for (size_t i = 0; i < nodes; ++i) {
    agents_.emplace_back();
    agents_.back().name = fmt::format("n{}", i);
    agents_.back().old = random_.OneIn(40);
  }
  Reload();
}

void Simulation::Reload() {
  options_.epoch = Epoch{options_.epoch.value + 1};
  Note(fmt::format("coordinator starts, epoch {}", options_.epoch.value));
  auto state = State::Load(options_, records_.ToRecords(), at_);
  if (!state) {
    Note("LOAD FAILED: " + state.error().ToString());
    std::abort();
  }
  state_ = std::make_unique<State>(*std::move(state));
  oracle_.CoordinatorRestarted();
  sessions_.clear();
  calls_.clear();
  orders_.clear();
  for (Agent& agent : agents_) {
    agent.attach = 0;
    agent.inbox.clear();
  }
}

/// Passes what `event` reports to the oracle, as far as the coordinator must accept it.
void Simulation::Observe(const Event& event) {
  if (const auto* attached = std::get_if<NodeAttached>(&event)) {
    sessions_[attached->node] = attached->attach;
    oracle_.Attached(attached->node, attached->replicas);
  }
  const auto* report = std::get_if<NodeReported>(&event);
  if (report == nullptr || sessions_.count(report->node) == 0) return;
  auto agent = std::find_if(agents_.begin(), agents_.end(),
                            [&](const Agent& a) { return a.name == report->node; });
  if (report->agent_start != agent->start || report->epoch != options_.epoch) return;
  for (const RemovedReplica& removed : report->removed) {
    oracle_.NotHeld(report->node, removed.key.version, removed.key.rank, removed.tier);
  }
  for (const StoredReplica& replica : report->replicas) {
    if (replica.damage.empty()) {
      oracle_.Held(report->node, replica);
    } else {
      oracle_.Damaged(report->node, replica.identity.version, replica.identity.rank, replica.tier);
    }
  }
  for (const Prepared& prepared : report->prepared) {
    auto order = orders_.find(prepared.request);
    if (order == orders_.end()) continue;
    const PrepareShard& o = order->second;
    if (o.tier == Tier::kPeer) {
      // A failed decode rules out no replica.
    } else if (prepared.outcome.code() == ErrorCode::kDataLoss) {
      oracle_.Damaged(o.source_node, o.identity.version, o.identity.rank, o.tier);
    } else if (prepared.outcome.code() == ErrorCode::kNotFound) {
      oracle_.NotHeld(o.source_node, o.identity.version, o.identity.rank, o.tier);
    }
    orders_.erase(order);
  }
  for (const FailedReplica& failed : report->failed) {
    const bool peer = failed.tier == Tier::kPeer;
    oracle_.NotHeld(report->node, failed.key.version, failed.key.rank,
                    peer ? Tier::kMemory : failed.tier);
    auto lineage = records_.lineages.find({job_, failed.key.version.incarnation});
    if (lineage == records_.lineages.end()) continue;
    if (peer) {
      oracle_.PeerFailed(failed.key.version);
    } else if (IsParity(failed.key.rank)) {
      continue;  // a failure of parity on disk fails no tier
    } else if (failed.tier == Tier::kMemory) {
      oracle_.MemoryFailed(failed.key.version, lineage->second.world);
    } else {
      oracle_.DiskFailed(failed.key.version);
    }
  }
}

void Simulation::Apply(const Event& event) {
  Observe(event);
  std::vector<Effect> effects = state_->Apply(event, at_);
  for (Effect& effect : state_->FinishBatch()) effects.push_back(std::move(effect));
  EXPECT_EQ(options_.invariants->what(), "");
  StoredRecords before = records_;
  const bool writes = std::any_of(effects.begin(), effects.end(),
                                  [](const Effect& effect) { return effect.index() <= 5; });
  const bool fail = faults_ && writes && random_.OneIn(40);
  if (fail && random_.OneIn(2)) {
    Note("write failed, not applied");
    return Reload();
  }
  for (const Effect& effect : effects) records_.Apply(effect);
  for (const Effect& effect : effects) {
    if (const auto* close = std::get_if<CloseAttach>(&effect)) {
      for (auto it = sessions_.begin(); it != sessions_.end(); ++it) {
        if (it->second != close->attach) continue;
        oracle_.Lost(it->first);
        sessions_.erase(it);
        break;
      }
    }
    if (const auto* put = std::get_if<PutVersion>(&effect)) {
      if (put->committed_tier_bit == 0) continue;
      ++counts_.commits;
      if (put->committed_tier_bit == TierBit(Tier::kPeer)) ++counts_.peer_commits;
      Note(fmt::format("commit {} bit {}", ToString(put->record.version), put->committed_tier_bit));
    }
    if (const auto* put = std::get_if<PutLineage>(&effect)) {
      Note(fmt::format("lineage {} decision {} restored {}", put->record.incarnation.value,
                       static_cast<int>(put->record.decision), ToString(put->record.restored)));
    }
    if (const auto* erase = std::get_if<EraseVersion>(&effect)) {
      Note("erase " + ToString(erase->version));
    }
  }
  oracle_.Check(effects, before, records_);
  if (fail) {
    Note("write failed, applied");
    return Reload();
  }
  Act(effects);
}

void Simulation::Act(const std::vector<Effect>& effects) {
  for (const Effect& effect : effects) {
    if (const auto* reply = std::get_if<Reply>(&effect)) OnReply(*reply);
    for (Agent& agent : agents_) {
      if (agent.attach == 0) continue;
      if (const auto* send = std::get_if<Send>(&effect)) {
        if (send->attach == agent.attach) agent.inbox.push_back(send->directive);
      } else if (const auto* close = std::get_if<CloseAttach>(&effect)) {
        if (close->attach != agent.attach) continue;
        agent.attach = 0;
        agent.inbox.clear();
      }
    }
  }
}

void Simulation::OnReply(const Reply& reply) {
  auto found = calls_.find(reply.request);
  if (found == calls_.end()) return;
  const Call call = found->second;
  calls_.erase(found);
  Run& run = runs_[call.run];
  if (call.kind == Call::Kind::kJoin) {
    if (!reply.outcome.ok()) return;
    run.joined[call.rank] = true;
    run.incarnation = reply.incarnation;
    return;
  }
  oracle_.CheckRestoreReply(call.incarnation, reply, records_);
  if (reply.outcome.code() == ErrorCode::kFailedPrecondition) {
    Note("restore refused: " + reply.outcome.message());
  }
  const bool fresh = reply.outcome.code() == ErrorCode::kNotFound;
  if (!fresh && !reply.outcome.ok()) return;
  ++counts_.restores;
  if (!fresh && reply.tier == Tier::kPeer) ++counts_.decoded;
  run.answered[call.rank] = true;
  run.next_step[call.rank] = fresh ? 1 : reply.version.step.value + 1;
}

StoredReplica Simulation::MakeReplica(const Shard& shard, Tier tier) const {
  StoredReplica report;
  report.identity.job = job_;
  report.identity.version = shard.first;
  report.identity.rank = Rank{shard.second};
  report.identity.world = records_.lineages.at({job_, shard.first.incarnation}).world;
  report.tier = tier;
  report.digest = shard.first.step.value * 1000 + shard.first.incarnation.value * 10 + shard.second;
  report.image_bytes = 100;
  return report;
}

std::vector<StoredReplica> Simulation::Inventory(const Agent& agent) const {
  std::vector<StoredReplica> replicas;
  for (const Shard& shard : agent.memory) replicas.push_back(MakeReplica(shard, Tier::kMemory));
  for (const Shard& shard : agent.disk) replicas.push_back(MakeReplica(shard, Tier::kDisk));
  return replicas;
}

NodeReported Simulation::NewReport(const Agent& agent) const {
  NodeReported report;
  report.node = agent.name;
  report.agent_start = agent.start;
  report.epoch = options_.epoch;
  return report;
}

void Simulation::Attach(Agent& agent) {
  if (agent.attach != 0) Detach(agent);
  agent.attach = next_id_++;
  agent.outbox.clear();  // all of it is in the inventory
  agent.last = {};
  NodeAttached event;
  event.attach = agent.attach;
  event.node = agent.name;
  event.agent_start = agent.start;
  event.data_address = "unix:/" + agent.name;
  event.replicas = Inventory(agent);
  if (!agent.old) event.peer_address = "unix:/" + agent.name + ".peer";
  event.epoch_seen = options_.epoch;
  Note(fmt::format("{} attaches with {} replicas", agent.name, event.replicas.size()));
  Apply(event);
}

void Simulation::Detach(Agent& agent) {
  if (agent.attach == 0) return;
  Note(agent.name + " detaches");
  const AttachId attach = std::exchange(agent.attach, 0);
  agent.inbox.clear();
  Apply(NodeDetached{agent.name, attach});
}

void Simulation::LoseMemory(Agent& agent) {
  Note(agent.name + " loses its memory");
  Detach(agent);
  ++agent.start;
  agent.memory.clear();
  agent.prepared.clear();
  agent.building = {};
  agent.outbox.clear();
}

void Simulation::Deliver(Agent& agent) {
  if (agent.attach == 0) return;
  if (!agent.last.node.empty() && Chance(20) && agent.last.removed.empty()) {
    // A repeated report has only what is still true, as in a retry of the same call.
    NodeReported again = agent.last;
    const std::vector<StoredReplica> inventory = Inventory(agent);
    again.replicas.erase(std::remove_if(again.replicas.begin(), again.replicas.end(),
                                        [&](const StoredReplica& report) {
                                          return std::find(inventory.begin(), inventory.end(),
                                                           report) == inventory.end();
                                        }),
                         again.replicas.end());
    Apply(again);
  }
  if (agent.outbox.empty()) return Apply(NewReport(agent));
  const size_t index = Chance(30) ? random_.Below(agent.outbox.size()) : 0;
  NodeReported report = agent.outbox[index];
  agent.outbox.erase(agent.outbox.begin() + static_cast<ptrdiff_t>(index));
  report.epoch = options_.epoch;
  report.agent_start = agent.start;
  agent.last = report;
  for (const StoredReplica& replica : report.replicas) {
    Note(fmt::format("{} holds {} {} {}", agent.name, ToString(replica.identity.version),
                     ShardName(replica.identity.rank), ToString(replica.tier)));
  }
  Apply(report);
}

void Simulation::Read(Agent& agent) {
  if (agent.attach == 0 || agent.inbox.empty()) return;
  Directive directive = agent.inbox.front();
  agent.inbox.pop_front();
  Obey(agent, directive);
}

void Simulation::Obey(Agent& agent, const Directive& directive) {
  auto drop = [&](std::set<Shard>& shards, Tier tier, auto&& doomed) {
    NodeReported report = NewReport(agent);
    for (auto it = shards.begin(); it != shards.end();) {
      if (!doomed(*it)) {
        ++it;
        continue;
      }
      report.removed.push_back({job_, it->first, Rank{it->second}, tier});
      it = shards.erase(it);
    }
    // An agent need not report memory that it freed after a newer commit.
    if (!report.removed.empty() && (tier == Tier::kDisk || Chance(50))) {
      agent.outbox.push_back(report);
    }
  };
  if (const auto* job_state = std::get_if<JobState>(&directive)) {
    if (job_state->incarnation != agent.incarnation) agent.prepared.clear();
    agent.incarnation = job_state->incarnation;
    agent.job_state = *job_state;
    const bool builds = job_state->group.has_value() &&
                        agent.building.incarnation == job_state->incarnation &&
                        agent.building.step >= job_state->target_step[Tier::kPeer];
    auto in_use = [&](VersionId version) {
      return version == job_state->committed[Tier::kPeer] || (builds && version == agent.building);
    };
    auto aborted = [&](VersionId version) {
      const std::vector<VersionId>& versions = job_state->aborted;
      return std::find(versions.begin(), versions.end(), version) != versions.end();
    };
    drop(agent.memory, Tier::kMemory, [&](const Shard& shard) {
      if (aborted(shard.first)) return true;
      if (in_use(shard.first)) return false;
      return IsParity(Rank{shard.second}) ||
             (shard.first < job_state->committed[Tier::kMemory] &&
              shard.first != job_state->restore && agent.prepared.count(shard) == 0);
    });
    drop(agent.disk, Tier::kDisk, [&](const Shard& shard) { return aborted(shard.first); });
  } else if (const auto* remove = std::get_if<RemoveVersion>(&directive)) {
    Note(fmt::format("{} removes {} at {}", agent.name, ToString(remove->version),
                     ToString(remove->tier)));
    drop(remove->tier == Tier::kDisk ? agent.disk : agent.memory, remove->tier,
         [&](const Shard& shard) { return shard.first == remove->version; });
  } else if (const auto* order = std::get_if<PrepareShard>(&directive)) {
    Prepare(agent, *order);
  }
}

bool Simulation::HasRanks(const PlanMember& member, VersionId version) const {
  auto agent = std::find_if(agents_.begin(), agents_.end(),
                            [&](const Agent& a) { return a.name == member.node; });
  return std::all_of(member.ranks.begin(), member.ranks.end(), [&](const PlanRank& rank) {
    return agent->memory.count({version, rank.rank.value}) != 0;
  });
}

/// Takes the first version from the target on whose shards this node has, and builds its parity
/// once the other members have their shards. Sometimes it reports a failure instead.
void Simulation::MakeParity(Agent& agent) {
  if (!agent.job_state.group) return;
  const std::vector<PlanMember>& members = agent.job_state.group->members();
  auto self = std::find_if(members.begin(), members.end(),
                           [&](const PlanMember& member) { return member.node == agent.name; });
  if (self == members.end() || agent.attach == 0) return;
  const VersionId target{agent.incarnation, agent.job_state.target_step[Tier::kPeer]};
  if (agent.building < target) {
    auto first = std::find_if(agent.memory.begin(), agent.memory.end(), [&](const Shard& shard) {
      return shard.first >= target && shard.first.incarnation == agent.incarnation &&
             HasRanks(*self, shard.first);
    });
    if (first == agent.memory.end()) return;
    agent.building = first->first;
  }
  const Rank parity = ParityRank(self->number);
  const Shard shard{agent.building, parity.value};
  if (agent.building.incarnation != agent.incarnation || agent.memory.count(shard) != 0) return;
  NodeReported report = NewReport(agent);
  const bool possible = std::all_of(members.begin(), members.end(), [&](const PlanMember& member) {
    return HasRanks(member, agent.building);
  });
  if (possible && !(faults_ && Chance(5))) {
    agent.memory.insert(shard);
    report.replicas.push_back(MakeReplica(shard, Tier::kMemory));
  } else if (faults_ && Chance(10)) {
    Note(fmt::format("{} fails to build the parity of {}", agent.name, ToString(agent.building)));
    report.failed.push_back({job_, agent.building, parity, Tier::kPeer, "a member is too slow"});
  } else {
    return;
  }
  agent.outbox.push_back(report);
}

/// The outcome of a decode for `order`, by the shards that the members really have.
Status Simulation::Decode(const PrepareShard& order) {
  const std::vector<PlanMember>& members = order.group->members();
  const size_t n = members.size();
  std::vector<bool> data;
  std::vector<bool> parity;
  for (const PlanMember& member : members) {
    auto agent = std::find_if(agents_.begin(), agents_.end(),
                              [&](const Agent& a) { return a.name == member.node; });
    const auto has = [&](Rank rank) {
      const Shard shard{order.identity.version, rank.value};
      return agent->memory.count(shard) != 0 || agent->disk.count(shard) != 0;
    };
    data.push_back(std::all_of(member.ranks.begin(), member.ranks.end(),
                               [&](const PlanRank& rank) { return has(rank.rank); }));
    parity.push_back(has(ParityRank(member.number)));
  }
  uint64_t most = 0;
  for (size_t leader = 0; leader < n; ++leader) {
    uint64_t erased = 0;
    for (size_t away = 0; away < n; ++away) {
      const size_t i = (leader + away) % n;
      erased += (away < order.group->layout().parity_count() ? parity[i] : data[i]) ? 0 : 1;
    }
    if (erased > order.group->layout().parity_count()) return NotFoundError("too few survivors");
    most = std::max(most, erased);
  }
  if (faults_ && Chance(5)) return DataLossError("a decoded chunk differs");
  counts_.max_lost = std::max(counts_.max_lost, most);
  return Status::Ok();
}

Status Simulation::ReadCopy(const PrepareShard& order) {
  const Shard shard{order.identity.version, order.identity.rank.value};
  auto source = std::find_if(agents_.begin(), agents_.end(),
                             [&](const Agent& a) { return a.name == order.source_node; });
  std::set<Shard>& replicas = order.tier == Tier::kDisk ? source->disk : source->memory;
  if (faults_ && replicas.count(shard) != 0 && Chance(5)) {
    source->damaged.insert({shard, order.tier});
  }
  if (replicas.count(shard) == 0) return NotFoundError("not here");
  if (source->damaged.count({shard, order.tier}) != 0) return DataLossError("a flipped bit");
  return Status::Ok();
}

void Simulation::Prepare(Agent& agent, const PrepareShard& order) {
  const Shard shard{order.identity.version, order.identity.rank.value};
  Status outcome = order.tier == Tier::kPeer ? Decode(order) : ReadCopy(order);
  if (outcome.ok() && faults_ && Chance(10)) outcome = UnavailableError("not now");
  if (!outcome.ok()) oracle_.SourceFailed();
  orders_[*order.request] = order;
  NodeReported report = NewReport(agent);
  report.prepared.push_back({*order.request, outcome});
  // A node that finds its own replica damaged reports it, and keeps it for its group.
  if (outcome.code() == ErrorCode::kDataLoss && order.source_node == agent.name && Chance(60)) {
    report.replicas.push_back(MakeReplica(shard, order.tier));
    report.replicas.back().damage = "a flipped bit";
  }
  if (outcome.ok()) {
    (order.into == Tier::kDisk ? agent.disk : agent.memory).insert(shard);
    agent.damaged.erase({shard, order.into});
    if (order.into == Tier::kMemory && !IsParity(order.identity.rank)) agent.prepared.insert(shard);
    if (order.into == Tier::kDisk || IsParity(order.identity.rank)) ++counts_.repaired;
    if (Chance(60)) report.replicas.push_back(MakeReplica(shard, order.into));
  }
  Note(fmt::format("{} prepares {} rank {} from {} of {}: {}", agent.name,
                   ToString(order.identity.version), order.identity.rank.value,
                   ToString(order.tier), order.source_node, outcome.ToString()));
  agent.outbox.push_back(report);
}

void Simulation::StartRun() {
  Run run;
  run.id = fmt::format("run-{}", runs_.size());
  const uint32_t nodes = static_cast<uint32_t>(agents_.size());
  const uint32_t world = 1 + static_cast<uint32_t>(random_.Below(std::max(3U, nodes + 1)));
  // Ranks that reshard may have any world. If there are versions of another world, ranks have no
  // shards of their own to restore.
  run.reshards = Chance(40);
  run.world = runs_.empty() || (run.reshards && Chance(50)) ? world : runs_.back().world;
  for (const auto& [key, record] : records_.versions) {
    run.reshards = run.reshards || record.world != run.world;
  }
  const bool spread = Chance(70);  // like launchers: ranks on nodes in order
  for (uint32_t rank = 0; rank < run.world; ++rank) {
    run.nodes.push_back(spread && !Chance(10) ? rank % nodes : random_.Below(nodes));
  }
  run.joined.resize(run.world);
  run.answered.resize(run.world);
  run.next_step.resize(run.world, 1);
  Note(fmt::format("starts {} of {} ranks{}", run.id, run.world,
                   run.reshards ? ", to reshard" : ""));
  runs_.push_back(std::move(run));
}

void Simulation::Join(Run& run, uint32_t rank) {
  const Agent& agent = agents_[run.nodes[rank]];
  RankJoined event{{job_, run.id, Rank{rank}, run.world, 7, agent.old ? 0 : uint64_t{4096}, {}}};
  const RequestId request = next_id_++;
  event.request = request;
  event.node = agent.name;
  event.agent_start = agent.start;
  event.may_have_joined = true;
  Call call;
  call.run = static_cast<size_t>(&run == &runs_.back() ? runs_.size() - 1 : runs_.size() - 2);
  call.rank = rank;
  calls_[request] = call;
  Note(fmt::format("{} rank {} joins on {}", run.id, rank, agent.name));
  Apply(event);
}

void Simulation::RequestRestore(Run& run, uint32_t rank) {
  if (!run.joined[rank] || run.answered[rank]) return;
  const Agent& agent = agents_[run.nodes[rank]];
  RestoreRequested event{{job_, run.incarnation, Rank{rank}, {}, 0, run.reshards}};
  event.request = next_id_++;
  event.node = agent.name;
  Call call;
  call.kind = Call::Kind::kRestore;
  call.run = runs_.size() - 1;
  call.rank = rank;
  call.incarnation = run.incarnation;
  calls_[event.request] = call;
  Note(fmt::format("{} rank {} requests a restore", run.id, rank));
  Apply(event);
}

void Simulation::Save(Run& run, uint32_t rank, bool skip) {
  if (!run.joined[rank]) return;
  Agent& agent = agents_[run.nodes[rank]];
  const VersionId version{run.incarnation, Step{run.next_step[rank]++}};
  NodeReported report = NewReport(agent);
  if (skip) {
    report.failed.push_back({job_, version, Rank{rank}, Tier::kMemory, "no slot"});
  } else {
    const Shard shard{version, rank};
    agent.memory.insert(shard);
    report.replicas.push_back(MakeReplica(shard, Tier::kMemory));
  }
  agent.outbox.push_back(report);
}

/// A step of all ranks, complete unless an event intervenes.
void Simulation::SaveTogether(Run& run) {
  uint64_t step = 0;
  for (uint64_t next : run.next_step) step = std::max(step, next);
  for (uint32_t rank = 0; rank < run.world; ++rank) {
    run.next_step[rank] = step;
    Save(run, rank, false);
  }
}

void Simulation::WriteToDisk(Agent& agent) {
  if (agent.memory.empty()) return;
  auto shard = agent.memory.begin();
  std::advance(shard, static_cast<ptrdiff_t>(random_.Below(agent.memory.size())));
  if (agent.disk.count(*shard) != 0) return;
  NodeReported report = NewReport(agent);
  if (faults_ && Chance(5)) {
    report.failed.push_back({job_, shard->first, Rank{shard->second}, Tier::kDisk, "disk full"});
  } else {
    agent.disk.insert(*shard);
    report.replicas.push_back(MakeReplica(*shard, Tier::kDisk));
  }
  agent.outbox.push_back(report);
}

void Simulation::PinRandomVersion() {
  if (records_.versions.empty()) return;
  auto it = records_.versions.begin();
  std::advance(it, static_cast<ptrdiff_t>(random_.Below(records_.versions.size())));
  Apply(PinSet{next_id_++, job_, it->first.second, random_.OneIn(2)});
}

void Simulation::RandomEvent() {
  at_.now += std::chrono::milliseconds(random_.Below(300));
  at_.wall_nanos += 1;
  Agent& agent = agents_[random_.Below(agents_.size())];
  const uint64_t dice = random_.Below(1000);
  if (dice < 10 || runs_.empty()) return StartRun();
  Run& run = runs_.size() > 1 && Chance(5) ? runs_[runs_.size() - 2] : runs_.back();
  const bool newest = &run == &runs_.back();
  const uint32_t rank = static_cast<uint32_t>(random_.Below(run.world));
  if (dice < 15) return Reload();
  if (dice < 18) return TrainUndisturbed();
  if (dice < 20) return LoseMachines();
  if (dice < 26) return LoseMemory(agent);
  if (dice < 40) return Detach(agent);
  if (dice < 140 && agent.attach == 0) return Attach(agent);
  if (dice < 220 && !run.joined[rank]) return Join(run, rank);
  if (dice < 300 && newest) return RequestRestore(run, rank);
  if (dice < 440) return Save(run, rank, Chance(4));
  if (dice < 470) return SaveTogether(run);
  if (dice < 540) return WriteToDisk(agent);
  if (dice < 610) return MakeParity(agent);
  if (dice < 760) return Deliver(agent);
  if (dice < 920) return Read(agent);
  if (dice < 930) return PinRandomVersion();
  if (dice < 935) at_.now += kLease;
  Apply(Tick{});
}

/// Delivers all reports and directives, and makes the agents carry out the directives.
void Simulation::RunRounds(int rounds) {
  for (int round = 0; round < rounds; ++round) {
    at_.now += std::chrono::milliseconds(100);
    for (Agent& agent : agents_) {
      while (!agent.inbox.empty()) Read(agent);
      if (!faults_ || Chance(30)) MakeParity(agent);  // parity may fall behind the steps
      while (!agent.outbox.empty() && agent.attach != 0) Deliver(agent);
      if (agent.attach != 0) Apply(NewReport(agent));
    }
    Apply(Tick{});
  }
}

/// Lets the newest run train for a while without faults.
void Simulation::TrainUndisturbed() {
  Note("trains undisturbed");
  for (Agent& agent : agents_) Attach(agent);
  for (uint32_t rank = 0; rank < runs_.back().world; ++rank) {
    if (!runs_.back().joined[rank]) Join(runs_.back(), rank);
    RequestRestore(runs_.back(), rank);
  }
  RunRounds(5);
  for (int step = 0; step < 4; ++step) {
    SaveTogether(runs_.back());
    RunRounds(2);
  }
}

/// Replaces some machines by empty ones, and starts the job again.
void Simulation::LoseMachines() {
  Note("loses machines");
  for (uint64_t losses = random_.Below(3); losses > 0; --losses) {
    Agent& agent = agents_[random_.Below(agents_.size())];
    LoseMemory(agent);
    if (Chance(50)) agent.disk.clear();
  }
  StartRun();
}

void Simulation::StartAndRestore() {
  at_.now += kLease;
  Apply(Tick{});
  for (Agent& agent : agents_) Attach(agent);
  StartRun();
  Run& run = runs_.back();
  for (uint32_t rank = 0; rank < run.world; ++rank) Join(run, rank);
  for (uint32_t rank = 0; rank < run.world; ++rank) RequestRestore(run, rank);
  RunRounds(40);
}

/// Loses as many members of each group as the group can survive, with their disks. Returns whether
/// the next run restores the version that the last run has at peer.
bool Simulation::SurvivesLosses() {
  Run& before = runs_.back();
  const VersionId saved{before.incarnation, Step{before.next_step[0] - 1}};
  auto lineage = records_.lineages.find({job_, before.incarnation});
  if (lineage == records_.lineages.end() || lineage->second.peers.empty()) return true;
  for (const PlannedGroup& group : PeerPlan(lineage->second.peers)) {
    const size_t first = random_.Below(group.members.size());
    for (uint32_t i = 0; i < group.parity; ++i) {
      const std::string& lost = group.members[(first + i) % group.members.size()].node;
      for (Agent& agent : agents_) {
        if (agent.name != lost) continue;
        LoseMemory(agent);
        agent.disk.clear();
      }
    }
  }
  StartAndRestore();
  const LineageRecord& now = records_.lineages.at({job_, runs_.back().incarnation});
  return now.decision == Decision::kVersion && now.restored == saved;
}

bool Simulation::Heal() {
  Note("healing");
  faults_ = false;
  StartAndRestore();
  SaveTogether(runs_.back());
  RunRounds(40);
  if (!SurvivesLosses()) {
    Note("the newest version at peer did not survive");
    return false;
  }
  Run& run = runs_.back();
  const VersionId saved{run.incarnation, Step{run.next_step[0]}};
  SaveTogether(run);
  RunRounds(40);
  for (Agent& agent : agents_) {
    for (const Shard& shard : agent.memory) {
      if (shard.first.incarnation != run.incarnation) continue;
      agent.disk.insert(shard);
      NodeReported report = NewReport(agent);
      report.replicas.push_back(MakeReplica(shard, Tier::kDisk));
      agent.outbox.push_back(report);
    }
  }
  RunRounds(40);
  uint32_t tiers = TierBit(Tier::kMemory) | TierBit(Tier::kDisk);
  auto lineage = records_.lineages.find({job_, run.incarnation});
  const bool planned = lineage != records_.lineages.end() && !lineage->second.peers.empty();
  if (planned) tiers |= TierBit(Tier::kPeer);
  auto record = records_.versions.find({job_, saved});
  return record != records_.versions.end() && record->second.tiers == tiers;
}

}  // namespace holdfast::coord
