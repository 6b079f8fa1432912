#include "tests/simulation/scenario.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "agent/pipeline/rank_status.h"
#include "base/invariant.h"
#include "tests/simulation/job.h"
#include "tests/simulation/node_host.h"
#include "tests/simulation/sim_processes.h"
#include "tests/simulation/world.h"

namespace holdfast::simulation {
namespace {
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

/// Longest virtual time until all promises hold after the last fault.
constexpr seconds kHealTime(240);

enum class Fault {
  kKillTrainer,
  kCrashAgent,
  kLosePower,
  kLoseDisk,
  kCrashCoordinator,
  kLoseStore,
  kRestoreCopy,
  kPauseAgent,
  kPauseCoordinator,
  kPauseTrainer,
  kCutOff,
  kBreakStream,
  kDiskError,
  kDiskFull,
  kDiskDamage,
  kSlowDisk,
  kJumpClock,
  kStopAgent,
  kAdopt,
};

/// How often each fault occurs, relative to the others.
struct Weight {
  Fault fault;
  uint64_t weight;
};
constexpr Weight kWeights[] = {
    {Fault::kKillTrainer, 4},  {Fault::kCrashAgent, 8},       {Fault::kLosePower, 4},
    {Fault::kLoseDisk, 1},     {Fault::kCrashCoordinator, 6}, {Fault::kLoseStore, 1},
    {Fault::kRestoreCopy, 1},  {Fault::kPauseAgent, 3},       {Fault::kPauseCoordinator, 2},
    {Fault::kPauseTrainer, 2}, {Fault::kCutOff, 4},           {Fault::kBreakStream, 3},
    {Fault::kDiskError, 4},    {Fault::kDiskFull, 2},         {Fault::kDiskDamage, 2},
    {Fault::kSlowDisk, 2},     {Fault::kJumpClock, 1},        {Fault::kStopAgent, 2},
    {Fault::kAdopt, 1},
};

class Scenario {
 public:
  Scenario(const ScenarioOptions& options, SimScheduler& scheduler)
      : options_(options), world_(scheduler, options.seed, options.dir, options.verbose) {}

  void Play();
  World& world() { return world_; }
  uint64_t faults() const { return faults_; }

 private:
  Random& random() { return world_.random; }
  NodeHost& AnyNode() { return *world_.nodes[random().Below(world_.nodes.size())]; }
  void Sleep(Clock::Duration time) { world_.clock.SleepFor(time); }
  milliseconds UpTo(uint64_t ms) { return milliseconds(1 + random().Below(ms)); }
  void Build();
  void Disturb();
  void Inject(Fault fault);
  void InjectAtDisk(Fault fault);
  void EndAgentAt(Fault fault);
  void RestartLater(NodeHost& node);
  void EndCoordinatorAt(Fault fault);
  void Heal();
  void Prove();
  bool Committed(const Job& job, const Run& run, Tier tier);
  void ShowSlots();
  void TearDown();

  const ScenarioOptions options_;
  World world_;
  std::vector<Weight> weights_;
  int restarts_ = 0;  // in progress
  bool healing_ = false;
  uint64_t faults_ = 0;
};

void Scenario::Build() {
  auto& state = world_.coordinator.options;
  state.keep_last = 1 + static_cast<uint32_t>(random().Below(3));
  state.peers.enabled = random().OneIn(3);
  state.peers.groups.group_nodes = 2 + static_cast<uint32_t>(random().Below(3));
  state.peers.groups.parity = 1;
  state.node_lease = seconds(3);
  world_.coordinator.Start();
  const uint64_t nodes = 2 + random().Below(random().OneIn(3) ? 5 : 2);
  for (uint64_t i = 0; i < nodes; ++i) {
    SimDiskOptions disk;
    disk.seed = options_.seed * 100 + i;
    disk.clock = &world_.clock;
    disk.operation_bytes = 256 << 10;
    world_.nodes.push_back(std::make_unique<NodeHost>(world_, fmt::format("n{}", i), disk));
    world_.nodes.back()->Start();
  }
  const uint64_t jobs = random().OneIn(2) ? 1 : 1 + random().Below(3);
  for (uint64_t i = 0; i < jobs; ++i) {
    const uint64_t bytes =
        random().OneIn(16) ? (1 << 20) + random().Below(1 << 20) : 64 + random().Below(20'000);
    world_.jobs.push_back(std::make_unique<Job>(world_, fmt::format("job{}", i), bytes));
    world_.jobs.back()->Start();
  }
  // Each system has some kinds of faults, so that rare combinations occur.
  std::copy_if(std::begin(kWeights), std::end(kWeights), std::back_inserter(weights_),
               [&](const Weight&) { return random().OneIn(3); });
  if (weights_.empty()) weights_.push_back(kWeights[random().Below(std::size(kWeights))]);
  NetworkFaults network;
  if (random().OneIn(3)) network.lost_one_in = 10 + random().Below(100);
  if (random().OneIn(3)) network.delayed_one_in = 5 + random().Below(50);
  if (random().OneIn(2)) network.late_one_in = 2;
  world_.network.SetFaults(network);
  if (random().OneIn(4)) world_.coordinator.write_fails_one_in = 10 + random().Below(60);
}

void Scenario::Disturb() {
  const double chaos =
      options_.chaos_seconds > 0 ? options_.chaos_seconds : 3 + 9 * random().Unit();
  const auto end = world_.scheduler.Now() + milliseconds(static_cast<int64_t>(chaos * 1000));
  uint64_t total = 0;
  for (const Weight& one : weights_) total += one.weight;
  const uint64_t pause_ms = 100 + random().Below(1'500);
  Sleep(UpTo(1'000));
  while (world_.scheduler.Now() < end && world_.checker.problems().empty()) {
    Sleep(UpTo(pause_ms));
    uint64_t choice = random().Below(total);
    for (const Weight& one : weights_) {
      if (choice < one.weight) {
        ++faults_;
        Inject(one.fault);
        break;
      }
      choice -= one.weight;
    }
  }
}

void Scenario::Inject(Fault fault) {
  NodeHost& node = AnyNode();
  switch (fault) {
    case Fault::kKillTrainer:
      world_.jobs[random().Below(world_.jobs.size())]->KillOne();
      return;
    case Fault::kCrashAgent:
    case Fault::kLosePower:
    case Fault::kLoseDisk:
    case Fault::kStopAgent:
      return EndAgentAt(fault);
    case Fault::kCrashCoordinator:
    case Fault::kLoseStore:
    case Fault::kRestoreCopy:
      return EndCoordinatorAt(fault);
    case Fault::kPauseAgent:
      if (!node.up()) return;
      world_.Trace(node.name() + ": the agent is stopped for a while");
      return world_.scheduler.Pause(node.life()->process, UpTo(8'000));
    case Fault::kPauseCoordinator:
      if (!world_.coordinator.up()) return;
      world_.Trace("the coordinator is stopped for a while");
      return world_.scheduler.Pause(world_.coordinator.life()->process, UpTo(6'000));
    case Fault::kPauseTrainer: {
      Trainer* trainer = world_.jobs[random().Below(world_.jobs.size())]->AnyTrainer();
      if (trainer != nullptr) world_.scheduler.Pause(trainer->process(), UpTo(4'000));
      return;
    }
    case Fault::kCutOff:
      world_.Trace(node.name() + " is cut off");
      return world_.network.CutOff(node.name(), UpTo(8'000));
    case Fault::kBreakStream:
      if (node.up()) node.life()->link->Break();
      return;
    case Fault::kDiskError:
    case Fault::kDiskFull:
    case Fault::kDiskDamage:
    case Fault::kSlowDisk:
      return InjectAtDisk(fault);
    case Fault::kJumpClock:
      if (node.up()) node.life()->clock->Jump(seconds(random().Below(200'000)) - seconds(100'000));
      return world_.clock.Jump(seconds(random().Below(20'000)) - seconds(10'000));
    case Fault::kAdopt:
      if (!world_.coordinator.up()) return;
      world_.Trace("an operator adopts versions of other lives");
      world_.checker.OnAdopted();
      return world_.coordinator.life()->applier->Submit(
          coord::Event(coord::AdoptRequested{{}, "", {}, false, kTrainerUser}));
  }
}

void Scenario::InjectAtDisk(Fault fault) {
  NodeHost& node = AnyNode();
  SimFault at;
  at.op = static_cast<SimOp>(random().Below(kSimOpCount));
  at.skip = random().Below(20);
  at.times = 1 + random().Below(4);
  if (fault == Fault::kDiskFull) {
    at.op = random().OneIn(2) ? SimOp::kAllocate : SimOp::kCreate;
    at.effect = SimEffect::kOutOfSpace;
  } else if (fault == Fault::kSlowDisk) {
    at.effect = SimEffect::kDelay;
    at.delay_ms = 1 + random().Below(3'000);
  } else if (fault == Fault::kDiskDamage) {
    at.op = random().OneIn(2) ? SimOp::kWrite : SimOp::kRead;
    at.effect = random().OneIn(3) ? SimEffect::kShort : SimEffect::kBitFlip;
    if (at.effect == SimEffect::kBitFlip) world_.checker.OnDiskTainted(node.name());
  } else {
    // A read that fails may make the agent give up a replica.
    if (at.op == SimOp::kRead || at.op == SimOp::kOpen || at.op == SimOp::kList) {
      world_.checker.OnDiskTainted(node.name());
    }
  }
  world_.Trace(fmt::format("{}: disk fault {} at operation {}", node.name(),
                           static_cast<int>(at.effect), static_cast<int>(at.op)));
  node.disk().Inject(at);
}

void Scenario::RestartLater(NodeHost& node) {
  ++restarts_;
  const auto wait = random().OneIn(3) ? UpTo(8'000) : UpTo(800);
  world_.scheduler.Spawn(world_.burial, [this, &node, wait] {
    const auto due = world_.scheduler.Now() + wait;
    while (!healing_ && world_.scheduler.Now() < due) Sleep(milliseconds(20));
    if (node.life() == nullptr) node.Start();
    --restarts_;
  });
}

void Scenario::EndAgentAt(Fault fault) {
  NodeHost& node = AnyNode();
  if (!node.up()) return;
  const auto life = node.life();
  world_.scheduler.AwaitSteps(life->process, 1 + random().Below(1'000),
                              world_.scheduler.Now() + milliseconds(300));
  if (node.life() != life) return;
  if (fault == Fault::kCrashAgent) node.CrashAgent();
  if (fault == Fault::kLosePower) node.LosePower();
  if (fault == Fault::kLoseDisk) node.LoseDisk();
  if (fault == Fault::kStopAgent) node.StopAgent();
  RestartLater(node);
}

void Scenario::EndCoordinatorAt(Fault fault) {
  CoordinatorHost& host = world_.coordinator;
  if (!host.up()) return;
  if (random().OneIn(2)) host.KeepCopy();
  const auto life = host.life();
  world_.scheduler.AwaitSteps(life->process, 1 + random().Below(300),
                              world_.scheduler.Now() + milliseconds(300));
  if (host.life() != life) return;
  host.Crash();
  if (fault == Fault::kLoseStore) host.LoseStore();
  if (fault == Fault::kRestoreCopy) host.RestoreCopy();
  ++restarts_;
  const auto wait = random().OneIn(3) ? UpTo(5'000) : UpTo(300);
  world_.scheduler.Spawn(world_.burial, [this, wait] {
    Sleep(wait);
    if (!world_.coordinator.up()) world_.coordinator.Start();
    --restarts_;
  });
}

/// Ends all faults. Everything that is down comes back.
void Scenario::Heal() {
  world_.Trace("faults end");
  healing_ = true;
  world_.network.Heal();
  world_.coordinator.write_fails_one_in = 0;
  for (const auto& job : world_.jobs) job->Stop();
  for (const auto& node : world_.nodes) {
    node->disk().ClearFaults();
    if (node->life() != nullptr) node->life()->process.paused_until = {};
  }
  const auto limit = world_.scheduler.Now() + kHealTime;
  const auto healed = [&] {
    return restarts_ == 0 && world_.coordinator.up() &&
           std::all_of(world_.nodes.begin(), world_.nodes.end(),
                       [](const auto& node) { return node->up(); }) &&
           std::all_of(world_.jobs.begin(), world_.jobs.end(),
                       [](const auto& job) { return job->stopped(); });
  };
  while (!healed() && world_.scheduler.Now() < limit) Sleep(milliseconds(50));
  if (!healed()) world_.checker.Fail("a process did not come back after the faults");
  // Leases end and inventories arrive.
  Sleep(seconds(8));
}

bool Scenario::Committed(const Job& job, const Run& run, Tier tier) {
  const auto newest = world_.checker.NewestAt(job.name(), tier);
  return newest && run.restored == run.world &&
         world_.checker.IsOfRun(job.name(), *newest, run.number);
}

void Scenario::Prove() {
  world_.checker.DemandNewest(true);
  std::vector<std::shared_ptr<Run>> runs;
  for (const auto& job : world_.jobs) runs.push_back(job->StartLast());
  const auto limit = world_.scheduler.Now() + kHealTime;
  for (size_t i = 0; i < runs.size(); ++i) {
    Job& job = *world_.jobs[i];
    for (Tier tier : {Tier::kMemory, Tier::kDisk}) {
      while (!Committed(job, *runs[i], tier) && world_.scheduler.Now() < limit &&
             world_.checker.problems().empty()) {
        Sleep(milliseconds(50));
        // Every version is lost: only an operator can let the job begin again.
        if (runs[i]->refusals < 30 || world_.checker.MustRestore(job.name())) continue;
        job.Forget();
        runs[i] = job.StartLast();
      }
      if (Committed(job, *runs[i], tier) || !world_.checker.problems().empty()) continue;
      ShowSlots();
      world_.checker.Fail(
          fmt::format("{}: no version of run {} is committed at {} after the "
                      "faults; {} of {} ranks have restored; {} refusals, the last: {}",
                      job.name(), runs[i]->number, ToString(tier), runs[i]->restored,
                      runs[i]->world, runs[i]->refusals, runs[i]->refusal));
    }
  }
}

/// Adds the slots of all ranks to the trace, for the search of a cause.
void Scenario::ShowSlots() {
  for (const auto& node : world_.nodes) {
    if (!node->up()) continue;
    for (const agent::RankStatus& rank : agent::StatusOf(node->life()->node->ranks())) {
      std::string text;
      for (const agent::SlotStatus& slot : rank.slots) {
        text += fmt::format(" [{} {} users={} verified={} disk={}]", ToString(slot.info.version),
                            static_cast<int>(slot.info.state), slot.info.in_use, slot.verified,
                            slot.disk);
      }
      world_.Trace(fmt::format("{}: {}/{}{}", node->name(), rank.owner.job,
                               ShardName(rank.owner.rank), text));
    }
  }
}

void Scenario::TearDown() {
  for (const auto& job : world_.jobs) job->Stop();
  for (const auto& node : world_.nodes) node->CrashAgent();
  world_.coordinator.Crash();
  const auto limit = world_.scheduler.Now() + minutes(10);
  const auto ended = [&] {
    return world_.burials == 0 && restarts_ == 0 &&
           std::all_of(world_.jobs.begin(), world_.jobs.end(),
                       [](const auto& job) { return job->stopped(); });
  };
  while (!ended() && world_.scheduler.Now() < limit) Sleep(milliseconds(50));
  if (!ended()) world_.checker.Fail("a thread of a dead process does not end");
  for (int i = 0; i < 200 && world_.scheduler.threads() > 1; ++i) Sleep(milliseconds(50));
}

void Scenario::Play() {
  Build();
  Disturb();
  Heal();
  if (world_.checker.problems().empty()) Prove();
  TearDown();
}
}  // namespace

Outcome RunScenario(const ScenarioOptions& options) {
  Random random(options.seed);
  SimSchedulerOptions scheduling;
  scheduling.seed = options.seed;
  scheduling.yield_one_in = 4ULL << random.Below(5);
  scheduling.step_ns_max = 1'000ULL << random.Below(6);
  SimScheduler scheduler(scheduling);
  // What an earlier system left must not change this one.
  ScenarioOptions own = options;
  own.dir += "/system";
  std::error_code ignored;
  std::filesystem::remove_all(own.dir, ignored);
  std::filesystem::create_directory(own.dir, ignored);
  Scenario scenario(own, scheduler);
  Outcome outcome;
  const uint64_t violations = InvariantViolations();
  if (!scheduler.Run([&] { scenario.Play(); })) {
    outcome.problems.push_back(scheduler.problem());
  }
  if (InvariantViolations() != violations) {
    outcome.problems.push_back("an invariant is violated; the first one: " +
                               FirstInvariantViolation());
  }
  World& world = scenario.world();
  for (const std::string& problem : world.checker.problems()) outcome.problems.push_back(problem);
  outcome.trace = scheduler.trace();
  outcome.steps = scheduler.steps();
  outcome.virtual_seconds = world.Seconds();
  outcome.counts = world.checker.counts();
  outcome.faults = scenario.faults();
  for (const auto& job : world.jobs) outcome.runs += job->runs();
  return outcome;
}

}  // namespace holdfast::simulation
