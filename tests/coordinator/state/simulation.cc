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
  const size_t nodes = 1 + random_.Below(3);
  for (size_t i = 0; i < nodes; ++i) {
    agents_.emplace_back();
    agents_.back().name = fmt::format("n{}", i);
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

/// Tells the oracle what `event` says, as far as the coordinator has to believe it.
void Simulation::Observe(const Event& event) {
  if (const auto* attached = std::get_if<NodeAttached>(&event)) {
    sessions_[attached->node] = attached->attach;
    oracle_.Attached(attached->node, attached->holdings);
  }
  const auto* report = std::get_if<NodeReported>(&event);
  if (report == nullptr || sessions_.count(report->node) == 0) return;
  auto agent = std::find_if(agents_.begin(), agents_.end(),
                            [&](const Agent& a) { return a.name == report->node; });
  if (report->agent_start != agent->start || report->epoch != options_.epoch) return;
  for (const Gone& gone : report->gone) {
    oracle_.NotHeld(report->node, gone.version, gone.rank, gone.tier);
  }
  for (const Holding& holding : report->holdings) oracle_.Held(report->node, holding);
  for (const Prepared& prepared : report->prepared) {
    auto order = orders_.find(prepared.request);
    if (order == orders_.end()) continue;
    const PrepareOrder& o = order->second;
    if (prepared.outcome.code() == ErrorCode::kDataLoss) {
      oracle_.Damaged(o.source_node, o.version, o.rank, o.tier);
    } else if (prepared.outcome.code() == ErrorCode::kNotFound) {
      oracle_.NotHeld(o.source_node, o.version, o.rank, o.tier);
    }
    orders_.erase(order);
  }
  for (const Missing& missing : report->missing) {
    oracle_.NotHeld(report->node, missing.version, missing.rank, missing.tier);
    auto lineage = records_.lineages.find({job_, missing.version.incarnation});
    if (lineage == records_.lineages.end()) continue;
    if (missing.tier == Tier::kMemory) {
      oracle_.MemoryMissed(missing.version, lineage->second.world);
    } else {
      oracle_.DiskMissed(missing.version);
    }
  }
}

void Simulation::Apply(const Event& event) {
  Observe(event);
  std::vector<Effect> effects = state_->Apply(event, at_);
  StoredRecords before = records_;
  const bool writes = std::any_of(effects.begin(), effects.end(),
                                  [](const Effect& effect) { return effect.index() <= 3; });
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
      ++commits_;
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
  ++restores_;
  run.answered[call.rank] = true;
  run.next_step[call.rank] = fresh ? 1 : reply.version.step.value + 1;
}

Holding Simulation::MakeHolding(const Shard& shard, Tier tier) const {
  Holding holding;
  holding.job = job_;
  holding.version = shard.first;
  holding.rank = Rank{shard.second};
  holding.world = records_.lineages.at({job_, shard.first.incarnation}).world;
  holding.tier = tier;
  holding.digest =
      shard.first.step.value * 1000 + shard.first.incarnation.value * 10 + shard.second;
  holding.image_bytes = 100;
  return holding;
}

std::vector<Holding> Simulation::Inventory(const Agent& agent) const {
  std::vector<Holding> holdings;
  for (const Shard& shard : agent.memory) holdings.push_back(MakeHolding(shard, Tier::kMemory));
  for (const Shard& shard : agent.disk) holdings.push_back(MakeHolding(shard, Tier::kDisk));
  return holdings;
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
  event.holdings = Inventory(agent);
  event.epoch_seen = options_.epoch;
  Note(fmt::format("{} attaches with {} holdings", agent.name, event.holdings.size()));
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
  agent.outbox.clear();
}

void Simulation::Deliver(Agent& agent) {
  if (agent.attach == 0) return;
  if (!agent.last.node.empty() && Chance(20) && agent.last.gone.empty()) {
    // Said again: only what is still true, as a retry of the same call would be.
    NodeReported again = agent.last;
    const std::vector<Holding> inventory = Inventory(agent);
    again.holdings.erase(std::remove_if(again.holdings.begin(), again.holdings.end(),
                                        [&](const Holding& holding) {
                                          return std::find(inventory.begin(), inventory.end(),
                                                           holding) == inventory.end();
                                        }),
                         again.holdings.end());
    Apply(again);
  }
  if (agent.outbox.empty()) return Apply(NewReport(agent));
  const size_t index = Chance(30) ? random_.Below(agent.outbox.size()) : 0;
  NodeReported report = agent.outbox[index];
  agent.outbox.erase(agent.outbox.begin() + static_cast<ptrdiff_t>(index));
  report.epoch = options_.epoch;
  report.agent_start = agent.start;
  agent.last = report;
  for (const Holding& holding : report.holdings) {
    Note(fmt::format("{} holds {} rank {} {}", agent.name, ToString(holding.version),
                     holding.rank.value, ToString(holding.tier)));
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
      report.gone.push_back({job_, it->first, Rank{it->second}, tier});
      it = shards.erase(it);
    }
    // An agent need not say that it freed memory after a newer commit.
    if (!report.gone.empty() && (tier == Tier::kDisk || Chance(50))) {
      agent.outbox.push_back(report);
    }
  };
  if (const auto* word = std::get_if<JobWord>(&directive)) {
    if (word->incarnation != agent.incarnation) agent.prepared.clear();
    agent.incarnation = word->incarnation;
    auto aborted = [&](VersionId version) {
      return std::find(word->aborted.begin(), word->aborted.end(), version) != word->aborted.end();
    };
    drop(agent.memory, Tier::kMemory, [&](const Shard& shard) {
      if (aborted(shard.first)) return true;
      return shard.first < word->memory_committed && shard.first != word->restore &&
             agent.prepared.count(shard) == 0;
    });
    drop(agent.disk, Tier::kDisk, [&](const Shard& shard) { return aborted(shard.first); });
  } else if (const auto* remove = std::get_if<RemoveOrder>(&directive)) {
    Note(fmt::format("{} removes {} at {}", agent.name, ToString(remove->version),
                     ToString(remove->tier)));
    drop(remove->tier == Tier::kDisk ? agent.disk : agent.memory, remove->tier,
         [&](const Shard& shard) { return shard.first == remove->version; });
  } else if (const auto* order = std::get_if<PrepareOrder>(&directive)) {
    Prepare(agent, *order);
  }
}

void Simulation::Prepare(Agent& agent, const PrepareOrder& order) {
  const Shard shard{order.version, order.rank.value};
  auto source = std::find_if(agents_.begin(), agents_.end(),
                             [&](const Agent& a) { return a.name == order.source_node; });
  std::set<Shard>& copies = order.tier == Tier::kDisk ? source->disk : source->memory;
  if (faults_ && copies.count(shard) != 0 && Chance(5)) source->damaged.insert({shard, order.tier});
  Status outcome;
  if (copies.count(shard) == 0) {
    outcome = NotFoundError("not here");
  } else if (source->damaged.count({shard, order.tier}) != 0) {
    outcome = DataLossError("a flipped bit");
  } else if (faults_ && Chance(10)) {
    outcome = UnavailableError("not now");
  }
  if (!outcome.ok()) oracle_.SourceFailed();
  orders_[order.request] = order;
  NodeReported report = NewReport(agent);
  report.prepared.push_back({order.request, outcome});
  if (outcome.ok()) {
    agent.memory.insert(shard);
    agent.damaged.erase({shard, Tier::kMemory});
    agent.prepared.insert(shard);
    if (Chance(60)) report.holdings.push_back(MakeHolding(shard, Tier::kMemory));
  }
  Note(fmt::format("{} prepares {} rank {} from {} of {}: {}", agent.name, ToString(order.version),
                   order.rank.value, ToString(order.tier), order.source_node, outcome.ToString()));
  agent.outbox.push_back(report);
}

void Simulation::StartRun() {
  Run run;
  run.id = fmt::format("run-{}", runs_.size());
  run.world = runs_.empty() ? 1 + static_cast<uint32_t>(random_.Below(3)) : runs_.front().world;
  for (uint32_t rank = 0; rank < run.world; ++rank)
    run.nodes.push_back(random_.Below(agents_.size()));
  run.joined.resize(run.world);
  run.answered.resize(run.world);
  run.next_step.resize(run.world, 1);
  Note("starts " + run.id);
  runs_.push_back(std::move(run));
}

void Simulation::Join(Run& run, uint32_t rank) {
  const Agent& agent = agents_[run.nodes[rank]];
  RankJoined event{next_id_++, agent.name, agent.start, job_, run.id, Rank{rank}, run.world, 7};
  Call call;
  call.run = static_cast<size_t>(&run == &runs_.back() ? runs_.size() - 1 : runs_.size() - 2);
  call.rank = rank;
  calls_[event.request] = call;
  Note(fmt::format("{} rank {} joins on {}", run.id, rank, agent.name));
  Apply(event);
}

void Simulation::AskRestore(Run& run, uint32_t rank) {
  if (!run.joined[rank] || run.answered[rank]) return;
  const Agent& agent = agents_[run.nodes[rank]];
  RestoreWanted event{next_id_++, agent.name, job_, run.incarnation, Rank{rank}, {}};
  Call call;
  call.kind = Call::Kind::kRestore;
  call.run = runs_.size() - 1;
  call.rank = rank;
  call.incarnation = run.incarnation;
  calls_[event.request] = call;
  Note(fmt::format("{} rank {} asks to restore", run.id, rank));
  Apply(event);
}

void Simulation::Save(Run& run, uint32_t rank, bool skip) {
  if (!run.joined[rank]) return;
  Agent& agent = agents_[run.nodes[rank]];
  const VersionId version{run.incarnation, Step{run.next_step[rank]++}};
  NodeReported report = NewReport(agent);
  if (skip) {
    report.missing.push_back({job_, version, Rank{rank}, Tier::kMemory, "no slot"});
  } else {
    const Shard shard{version, rank};
    agent.memory.insert(shard);
    report.holdings.push_back(MakeHolding(shard, Tier::kMemory));
  }
  agent.outbox.push_back(report);
}

void Simulation::WriteToDisk(Agent& agent) {
  if (agent.memory.empty()) return;
  auto shard = agent.memory.begin();
  std::advance(shard, static_cast<ptrdiff_t>(random_.Below(agent.memory.size())));
  if (agent.disk.count(*shard) != 0) return;
  NodeReported report = NewReport(agent);
  if (faults_ && Chance(5)) {
    report.missing.push_back({job_, shard->first, Rank{shard->second}, Tier::kDisk, "disk full"});
  } else {
    agent.disk.insert(*shard);
    report.holdings.push_back(MakeHolding(*shard, Tier::kDisk));
  }
  agent.outbox.push_back(report);
}

void Simulation::SayPin() {
  if (records_.versions.empty()) return;
  auto it = records_.versions.begin();
  std::advance(it, static_cast<ptrdiff_t>(random_.Below(records_.versions.size())));
  Apply(PinSet{next_id_++, job_, it->first.second, random_.OneIn(2)});
}

void Simulation::Happen() {
  at_.now += std::chrono::milliseconds(random_.Below(300));
  at_.wall_nanos += 1;
  Agent& agent = agents_[random_.Below(agents_.size())];
  const uint64_t dice = random_.Below(1000);
  if (dice < 10 || runs_.empty()) return StartRun();
  Run& run = runs_.size() > 1 && Chance(5) ? runs_[runs_.size() - 2] : runs_.back();
  const bool newest = &run == &runs_.back();
  const uint32_t rank = static_cast<uint32_t>(random_.Below(run.world));
  if (dice < 15) return Reload();
  if (dice < 22) return LoseMemory(agent);
  if (dice < 40) return Detach(agent);
  if (dice < 140 && agent.attach == 0) return Attach(agent);
  if (dice < 220 && !run.joined[rank]) return Join(run, rank);
  if (dice < 300 && newest) return AskRestore(run, rank);
  if (dice < 480) return Save(run, rank, Chance(4));
  if (dice < 580) return WriteToDisk(agent);
  if (dice < 760) return Deliver(agent);
  if (dice < 920) return Read(agent);
  if (dice < 930) return SayPin();
  if (dice < 935) at_.now += kLease;
  Apply(Tick{});
}

void Simulation::Heal() {
  Note("healing");
  faults_ = false;
  at_.now += kLease;
  Apply(Tick{});
  for (Agent& agent : agents_) Attach(agent);
  StartRun();
  Run& run = runs_.back();
  for (uint32_t rank = 0; rank < run.world; ++rank) Join(run, rank);
  auto settle = [&] {
    for (int round = 0; round < 60; ++round) {
      at_.now += std::chrono::milliseconds(100);
      for (Agent& agent : agents_) {
        while (!agent.inbox.empty()) Read(agent);
        while (!agent.outbox.empty()) Deliver(agent);
        Apply(NewReport(agent));
      }
      Apply(Tick{});
    }
  };
  for (uint32_t rank = 0; rank < run.world; ++rank) AskRestore(run, rank);
  settle();
  for (uint32_t rank = 0; rank < run.world; ++rank) Save(run, rank, false);
  settle();
  for (Agent& agent : agents_) {
    for (const Shard& shard : agent.memory) {
      if (shard.first.incarnation != run.incarnation) continue;
      agent.disk.insert(shard);
      NodeReported report = NewReport(agent);
      report.holdings.push_back(MakeHolding(shard, Tier::kDisk));
      agent.outbox.push_back(report);
    }
  }
  settle();
}

}  // namespace holdfast::coord
