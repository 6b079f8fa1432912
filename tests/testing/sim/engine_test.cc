// Invariants of every execution of rank programs, for any random draw: the order of streams, the
// ends of collectives, and the totals in the records.

#include "testing/sim/program/engine.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "testing/sim/program/agents.h"
#include "testing/sim/program/recorder.h"
#include "testing/sim/program/run.h"

namespace holdfast::sim::program {
namespace {

constexpr double kSimulatedS = 40;

Case CaseOf(Family family, std::string_view fault) {
  Case what;
  what.family = family;
  what.fault = *FindFault(fault);
  return what;
}

/// One job with all of its operations.
struct Execution {
  explicit Execution(Family family, uint64_t seed, std::string_view fault = "none")
      : noise(seed), setup(MakeRunSetup(CaseOf(family, fault), noise)) {
    setup.setting.pauses.clear();
    setup.setting.job.local_steps = 5;
    setup.job = MakeJob(family, 8, setup.setting.job);
    // Operations that the detector does not see obey the same invariants.
    for (Comm& comm : setup.job.comms) comm.recorded = true;
    for (Fault& one : setup.faults) one.onset_s = kSimulatedS / 2;
    engine.emplace(setup.job, setup.setting, setup.faults, seed);
  }
  double step_s() const { return setup.setting.step_s; }

  Noise noise;
  RunSetup setup;
  std::optional<Engine> engine;
};

class ProgramTest : public testing::TestWithParam<Family> {};

TEST_P(ProgramTest, ACollectiveEndsForAllAfterItsLastParticipantJoined) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    Execution run(GetParam(), seed);
    run.engine->RunUntil(kSimulatedS);
    struct Seen {
      size_t count = 0;
      double last_start_s = 0;
      double first_end_s = kNever;
      double last_end_s = 0;
      double seconds = 0;
    };
    std::map<std::pair<uint32_t, uint64_t>, Seen> rendezvous_queue;
    for (uint32_t rank = 0; rank < 8; ++rank) {
      for (const Op& op : run.engine->rank(rank).ops) {
        if (op.kind != Op::Kind::kTransfer) continue;
        Seen& seen = rendezvous_queue[{op.channel, op.ordinal}];
        ++seen.count;
        seen.last_start_s = std::max(seen.last_start_s, op.start_s);
        seen.first_end_s = std::min(seen.first_end_s, op.end_s);
        seen.last_end_s = std::max(seen.last_end_s, op.end_s);
        seen.seconds = op.seconds;
      }
    }
    for (const auto& [key, seen] : rendezvous_queue) {
      if (seen.first_end_s == kNever) continue;
      EXPECT_EQ(seen.count, run.setup.job.channels[key.first].members.size());
      EXPECT_GT(seen.first_end_s, seen.last_start_s) << "channel " << key.first;
      EXPECT_GT(seen.first_end_s - seen.last_start_s, 0.3 * seen.seconds);
      EXPECT_LT(seen.last_end_s - seen.first_end_s, 1e-4) << "all members leave together";
    }
  }
}

TEST_P(ProgramTest, StreamsKeepTheirOrderAndDependencies) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    Execution run(GetParam(), seed);
    run.engine->RunUntil(kSimulatedS);
    for (uint32_t rank = 0; rank < 8; ++rank) {
      const auto& ops = run.engine->rank(rank).ops;
      std::vector<double> free_s(run.setup.job.streams);
      double enqueued_s = 0;
      for (const Op& op : ops) {
        EXPECT_GE(op.enqueue_s, enqueued_s) << "a CPU enqueues in order";
        enqueued_s = op.enqueue_s;
        if (op.start_s == kNever) continue;
        EXPECT_GE(op.start_s, op.enqueue_s);
        EXPECT_GE(op.start_s, free_s[op.stream]);
        if (op.after != kNone) {
          EXPECT_GE(op.start_s, ops[op.after].end_s);
        }
        EXPECT_GE(op.end_s, op.start_s);
        free_s[op.stream] = op.end_s;
      }
    }
  }
}

TEST_P(ProgramTest, HealthyJobsKeepMakingSteps) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    Execution run(GetParam(), seed);
    const double until_s = 30 + 20 * run.step_s();
    run.engine->RunUntil(until_s);
    for (uint32_t rank = 0; rank < 8; ++rank) {
      const auto& steps = run.engine->rank(rank).steps;
      ASSERT_GT(static_cast<double>(steps.size()), 0.5 * until_s / run.step_s() - 2)
          << "rank " << rank << " seed " << seed;
      double sum_s = 0;
      for (const StepMark& mark : steps) sum_s += mark.duration_s;
      const double began_s = steps.front().at_s - steps.front().duration_s;
      EXPECT_NEAR(sum_s, steps.back().at_s - began_s, 1e-6) << "steps follow each other";
    }
  }
}

TEST_P(ProgramTest, BlockedTimeIsTheUnionOfRunningOperations) {
  Execution run(GetParam(), 7);
  Engine& engine = *run.engine;
  const uint32_t rank = 5;
  Recorder recorder(engine, rank);
  std::vector<Recorder::Ended> ended;
  for (double at_s = 0.25; at_s < kSimulatedS; at_s += 0.25) {
    engine.RunUntil(at_s);
    Recorder::Snapshot snapshot;
    recorder.Read(at_s, snapshot);
    for (const auto& one : snapshot.ended) ended.push_back(one);
  }
  std::sort(ended.begin(), ended.end(),
            [](const auto& a, const auto& b) { return a.start_s < b.start_s; });
  size_t compared = 0;
  for (size_t i = 0; i < ended.size() && ended[i].start_s < kSimulatedS - 5; ++i) {
    double union_s = 0;
    double until_s = 0;
    uint64_t bytes = 0;
    for (size_t j = 0; j < i; ++j) {
      const double from_s = std::max(until_s, ended[j].start_s);
      const double to_s = std::min(ended[i].start_s, ended[j].stop_s);
      if (to_s > from_s) union_s += to_s - from_s;
      until_s = std::max(until_s, to_s);
      bytes += ended[j].record.bytes;
    }
    const auto together = [&](size_t j) {
      return j < ended.size() && ended[j].start_s == ended[i].start_s;
    };
    EXPECT_NEAR(static_cast<double>(ended[i].record.blocked_ns) * 1e-9, union_s, 1e-6);
    if (!together(i - 1) && !together(i + 1)) {  // of two simultaneous ones, either may be first
      EXPECT_EQ(ended[i].record.moved_bytes, bytes);
    }
    ++compared;
  }
  EXPECT_GT(compared, 0U);
}

TEST_P(ProgramTest, TheCpuStaysWithinItsLaunchDepth) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    Execution run(GetParam(), seed);
    const uint32_t ahead = run.setup.setting.ahead;
    if (ahead == 0) continue;
    run.engine->RunUntil(kSimulatedS);
    for (uint32_t rank = 0; rank < 8; ++rank) {
      std::vector<const Op*> kernels;
      for (const Op& op : run.engine->rank(rank).ops) {
        if (op.kind == Op::Kind::kCompute) kernels.push_back(&op);
      }
      for (size_t i = ahead; i < kernels.size(); ++i) {
        EXPECT_GE(kernels[i]->enqueue_s, kernels[i - ahead]->start_s);
      }
    }
  }
}

TEST_P(ProgramTest, AKilledRankDoesNothingMore) {
  Execution run(GetParam(), 3, "sigkill");
  run.engine->RunUntil(kSimulatedS * 2);
  const double onset_s = run.setup.faults.front().onset_s;
  EXPECT_EQ(run.engine->effect_s(), onset_s);
  for (uint32_t rank = 0; rank < 8; ++rank) {
    for (const Op& op : run.engine->rank(rank).ops) {
      if (rank == run.setup.faults.front().rank) {
        EXPECT_LE(op.enqueue_s, onset_s + 1);
        if (op.start_s < kNever) {
          EXPECT_LT(op.start_s, onset_s);
        }
      }
      if (op.kind != Op::Kind::kTransfer || op.end_s == kNever) continue;
      const auto& members = run.setup.job.channels[op.channel].members;
      if (std::count(members.begin(), members.end(), run.setup.faults.front().rank) > 0) {
        EXPECT_LE(op.end_s, onset_s + 1e-4) << "an operation ended without one of its members";
      }
    }
  }
}

TEST_P(ProgramTest, EveryFittingFaultTakesEffect) {
  for (const FaultSpec& spec : Faults()) {
    if (spec.kind == FaultKind::kNone || !Fits(spec, GetParam())) continue;
    // A job on one node has no links. A fault of a checkpoint takes effect at the next checkpoint.
    Noise noise(5);
    const Case what = CaseOf(GetParam(), spec.name);
    const RunSetup setup = MakeRunSetup(what, noise);
    ASSERT_FALSE(setup.faults.empty());
    EXPECT_LT(setup.faults.front().rank, 8U);
    if (setup.job.nodes() == 1) continue;
    Engine engine(setup.job, setup.setting, setup.faults, setup.seed);
    double at_s = 0;
    while (engine.effect_s() == kNever && at_s < 2000) engine.RunUntil(at_s += 10);
    EXPECT_GE(engine.effect_s(), engine.fault().onset_s) << spec.name;
    EXPECT_LT(engine.effect_s(), kNever) << spec.name;
  }
}

TEST_P(ProgramTest, ASlowGpuTakesLongerForItsKernels) {
  Noise noise(9);
  RunSetup setup = MakeRunSetup(CaseOf(GetParam(), "gpu-30%"), noise);
  setup.setting.stall_chance = 0;
  const double onset_s = 20 + 30 * setup.setting.step_s;
  setup.faults.front().onset_s = onset_s;
  Engine engine(setup.job, setup.setting, setup.faults, 1);
  engine.RunUntil(2 * onset_s);
  for (const uint32_t rank : {setup.faults.front().rank, (setup.faults.front().rank + 1) % 8}) {
    double longer[2] = {};  // than nominal, before and after
    double nominal[2] = {};
    for (const Op& op : engine.rank(rank).ops) {
      if (op.kind != Op::Kind::kCompute || op.end_s == kNever) continue;
      longer[op.start_s >= onset_s] += op.end_s - op.start_s;
      nominal[op.start_s >= onset_s] += op.seconds;
    }
    const double change = longer[1] / nominal[1] / (longer[0] / nominal[0]);
    EXPECT_NEAR(change, rank == setup.faults.front().rank ? 1.3 : 1.0, 0.05);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, ProgramTest, testing::ValuesIn(kFamilies),
                         [](const auto& family) {
                           std::string name(ToString(family.param));
                           std::erase(name, '-');
                           return name;
                         });

TEST(RecorderTest, AStoppedProcessWritesNoRecords) {
  Execution run(Family::kDdp, 2, "sigstop");
  const uint32_t rank = run.setup.faults.front().rank;
  Recorder recorder(*run.engine, rank);
  Recorder::Snapshot snapshot;
  for (double at_s = 0.5; at_s <= run.setup.faults.front().onset_s; at_s += 0.5) {
    run.engine->RunUntil(at_s);
    recorder.Read(at_s, snapshot);
  }
  const double later_s = run.setup.faults.front().onset_s + 30;
  run.engine->RunUntil(later_s);
  recorder.Read(later_s, snapshot);
  const uint64_t step = snapshot.step;
  EXPECT_GT(snapshot.silent_s, 29);
  recorder.Read(later_s + 10, snapshot);
  EXPECT_TRUE(snapshot.ended.empty());
  EXPECT_EQ(snapshot.step, step);
}

TEST(RecorderTest, OnlyMarkedPausesAreReported) {
  for (const bool marked : {true, false}) {
    Execution run(Family::kDdp, 2);
    run.setup.setting.pauses.push_back(
        {.phase = detect::Phase::kEvaluation, .marked = marked, .first_step = 3, .seconds = 20});
    uint8_t seen = 0;
    double longest_s = 0;
    Recorder recorder(*run.engine, 0);
    for (double at_s = 0.5; at_s <= kSimulatedS; at_s += 0.5) {
      run.engine->RunUntil(at_s);
      Recorder::Snapshot snapshot;
      recorder.Read(at_s, snapshot);
      seen |= snapshot.phases;
      longest_s = std::max(longest_s, snapshot.since_step_s);
    }
    EXPECT_EQ(seen, marked ? static_cast<uint8_t>(detect::Phase::kEvaluation) : 0);
    EXPECT_GT(longest_s, 15) << "the rank did pause";
  }
}

TEST(AgentsTest, ThePauseDeterminesTheStateOfTheProcess) {
  Execution run(Family::kDdp, 2);
  run.setup.setting.pauses.push_back(
      {.marked = false, .rank = 3, .first_step = 3, .seconds = 20, .states = "DS"});
  Agents agents(*run.engine, kAgentsRule, 1);
  std::map<uint32_t, std::set<char>> states;
  for (double at_s = 1; at_s <= kSimulatedS; at_s += 1) {
    run.engine->RunUntil(at_s);
    agents.SampleUntil(at_s);
    while (const auto delivery = agents.Next(at_s)) {
      for (const detect::RankState& state : delivery->digest->ranks) {
        states[state.rank.value].insert(state.process_state);
      }
    }
  }
  EXPECT_EQ(states[3], (std::set<char>{'D', 'R', 'S'}));
  EXPECT_EQ(states[2], (std::set<char>{'R'}));
}

TableFlight FlightOf(uint64_t sequence, bool started, uint64_t age_ns, uint64_t communicator,
                     uint32_t slot) {
  TableFlight seen;
  seen.flight.record.communicator = {communicator};
  seen.flight.record.kind = CollectiveKind::kAllReduce;
  seen.flight.record.sequence = sequence;
  seen.flight.started = started;
  seen.flight.age_ns = age_ns;
  seen.slot = slot;
  return seen;
}

TEST(FlightsTest, TableOrderFollowsTheSlots) {
  const auto flights = ReportedFlights(
      {FlightOf(1, true, 2'000'000'000, 1, 9), FlightOf(2, false, 1'000'000'000, 1, 4),
       FlightOf(3, false, 600'000'000, 1, 0)},
      FlightRule::kTableOrder);
  ASSERT_EQ(flights.size(), 2U) << "young flights are not reported";
  EXPECT_EQ(flights[0].record.sequence, 2U);
  EXPECT_EQ(flights[1].record.sequence, 1U);
}

TEST(FlightsTest, StartedFlightsComeFirstThenOneEnqueuedPerCommunicator) {
  const auto flights = ReportedFlights(
      {FlightOf(5, false, 3'000'000'000, 1, 0), FlightOf(6, false, 2'000'000'000, 1, 1),
       FlightOf(7, false, 1'000'000'000, 2, 2), FlightOf(4, true, 900'000'000, 1, 3)},
      FlightRule::kStartedFirst);
  ASSERT_EQ(flights.size(), 3U);
  EXPECT_EQ(flights[0].record.sequence, 4U);
  EXPECT_EQ(flights[1].record.sequence, 5U);
  EXPECT_EQ(flights[2].record.sequence, 7U);
}

TEST(RunTest, ASeedDeterminesTheOutcome) {
  const Case what = CaseOf(Family::kPipeline, "loader");
  const Outcome first = RunCase(what, 11);
  const Outcome second = RunCase(what, 11);
  EXPECT_EQ(first.onset_s, second.onset_s);
  EXPECT_EQ(first.latency_s, second.latency_s);
  EXPECT_EQ(first.reported.size(), second.reported.size());
  EXPECT_NE(first.onset_s, RunCase(what, 12).onset_s);
}

}  // namespace
}  // namespace holdfast::sim::program
