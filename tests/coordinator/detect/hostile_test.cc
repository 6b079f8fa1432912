// Corrupt input, such as a faulty trainer can write into its records. The detector does not crash,
// and blames no rank because of such input. It still finds real faults, and its memory stays
// bounded.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/random.h"
#include "testing/sim/trace.h"
#include "tests/coordinator/detect/detect_test_util.h"

namespace holdfast::detect {
namespace {
using ::testing::ElementsAre;
using ::testing::SizeIs;

/// Returns a number that is often at an end of its range.
uint64_t Wild(Random& random) {
  switch (random.Below(6)) {
    case 0:
      return 0;
    case 1:
      return ~uint64_t{0};
    case 2:
      return uint64_t{1} << random.Below(64);
    case 3:
      return (uint64_t{1} << random.Below(64)) - 1;
    case 4:
      return random.Below(16);
    default:
      return random.Next();
  }
}

template <typename T>
T WildEnum(Random& random) {
  return static_cast<T>(random.Below(4) == 0 ? random.Next() : random.Below(12));
}

Digest WildDigest(Random& random) {
  Digest digest;
  digest.node = "n" + std::to_string(random.Below(6));
  if (random.OneIn(20)) digest.node = std::string(random.Below(300), '/');
  digest.incarnation = Incarnation{random.OneIn(10) ? random.Next() : 1};
  digest.world = random.OneIn(10) ? static_cast<uint32_t>(random.Next()) : 8;
  digest.agent_start = random.OneIn(10) ? random.Next() : 1;
  digest.number = random.OneIn(4) ? Wild(random) : random.Below(1000);
  digest.taken_ns = Wild(random);
  auto rank = [&] {
    return Rank{static_cast<uint32_t>(random.OneIn(8) ? random.Next() : random.Below(8))};
  };
  auto communicator_id = [&] {
    return CommunicatorId{random.OneIn(4) ? random.Next() : random.Below(6)};
  };
  auto record = [&] {
    CollectiveRecord wild;
    wild.communicator = communicator_id();
    wild.kind = WildEnum<CollectiveKind>(random);
    wild.dtype = static_cast<uint8_t>(random.Next());
    for (uint64_t* number : {&wild.sequence, &wild.bytes, &wild.started_ns, &wild.ended_ns,
                             &wild.enqueued_ns, &wild.blocked_ns, &wild.moved_bytes}) {
      *number = Wild(random);
    }
    return wild;
  };
  for (uint64_t i = random.Below(6); i > 0; --i) {
    Communicator communicator{.id = communicator_id(), .role = WildEnum<CommunicatorRole>(random)};
    for (uint64_t n = random.Below(12); n > 0; --n) communicator.members.push_back(rank());
    digest.communicators.push_back(communicator);
  }
  for (uint64_t i = random.Below(10); i > 0; --i) {
    RankState state;
    state.rank = rank();
    state.process_state = static_cast<char>(random.Next());
    state.phases = static_cast<uint8_t>(random.Next());
    state.step = Wild(random);
    state.silent_ns = Wild(random);
    state.since_step_ns = Wild(random);
    state.steps = {{Wild(random), Wild(random)}, {Wild(random), Wild(random)}};
    digest.ranks.push_back(state);
  }
  for (uint64_t i = random.Below(20); i > 0; --i) {
    digest.ended.push_back({rank(), record()});
    RankFlight flight{rank(), record(), random.OneIn(2), Wild(random)};
    if (random.OneIn(2)) {
      flight.edge =
          PeerEdge{rank(), WildEnum<Direction>(random), WildEnum<EdgeState>(random), Wild(random)};
    }
    digest.in_flight.push_back(flight);
    digest.completed.push_back(
        {rank(), {communicator_id(), WildEnum<CollectiveKind>(random), Wild(random)}});
    PeerTransfers sums{.communicator = communicator_id(),
                       .direction = WildEnum<Direction>(random),
                       .transfers = Wild(random),
                       .bytes = Wild(random)};
    (random.OneIn(2) ? sums.transfer_ns : sums.peer_wait_ns) = Wild(random);
    digest.peers.push_back({rank(), rank(), sums});
  }
  return digest;
}

TEST(HostileTest, RandomDigestsDoNotCrashTheDetector) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    Detector detector(Incarnation{1}, 8);
    Clock::TimePoint now(std::chrono::hours(1));
    for (int i = 0; i < 400; ++i) {
      detector.Observe(WildDigest(random), now);
      if (i % 8 == 0) detector.Evaluate(now);
      now += std::chrono::milliseconds(random.Below(500));
    }
    EXPECT_GT(detector.counters().refused_records, 0U);
    EXPECT_GT(detector.counters().refused_digests, 0U);
  }
}

TEST(HostileTest, AnAgentCanReportOnlyItsOwnRanks) {
  FakeJob job(6);
  job.AddComm(kAll, CommunicatorRole::kData, {0, 1, 2, 3, 4, 5});
  job.Evaluate();
  Digest digest = job.DigestOf(0);
  digest.ranks.push_back(job.state(4));
  digest.ranks.back().alive = false;
  digest.in_flight.push_back(FlightOf(5, kAll, kReduce, 5, 60));
  job.detector.Observe(digest, job.now());
  EXPECT_THAT(job.detector.Evaluate(job.now()), SizeIs(0));
  EXPECT_EQ(job.detector.counters().refused_records, 2U);
}

TEST(HostileTest, ImpossibleOrdinalsOfOneRankDoNotHideTheHang) {
  FakeJob job(6);
  job.AddComm(kAll, CommunicatorRole::kData, {0, 1, 2, 3, 4, 5});
  job.Evaluate();
  Digest faulty = job.DigestOf(1);
  faulty.completed.push_back({Rank{2}, {{kAll}, kReduce, uint64_t{1} << 40}});
  job.detector.Observe(faulty, job.now());
  job.Advance(std::chrono::seconds(70));
  for (uint32_t rank : {0U, 1U, 3U, 4U, 5U}) job.AddFlight(rank, kAll, kReduce, 5, 70);
  const auto verdicts = job.Evaluate();
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_THAT(verdicts[0].ranks, ElementsAre(Rank{2}));
}

TEST(HostileTest, ACommunicatorCountsOnceHalfOfItsMembersConfirmIt) {
  FakeJob job(6);
  job.Evaluate();
  Digest faulty = job.DigestOf(0);
  faulty.communicators = {{.id = {7},
                           .role = CommunicatorRole::kData,
                           .members = {Rank{0}, Rank{2}, Rank{3}, Rank{4}, Rank{5}}}};
  faulty.in_flight = {FlightOf(0, 7, kReduce, 5, 60)};
  job.Advance(std::chrono::seconds(8));
  job.detector.Observe(faulty, job.now());
  EXPECT_THAT(job.detector.Evaluate(job.now()), SizeIs(0));
}

TEST(HostileTest, ALateOrRepeatedDigestDoesNotReplaceANewerOne) {
  FakeJob job(4);
  job.AddComm(kAll, CommunicatorRole::kData, {0, 1, 2, 3});
  const Digest old = job.DigestOf(1);
  job.Evaluate();
  job.state(3).alive = false;
  EXPECT_THAT(job.Evaluate(), SizeIs(1));
  job.detector.Observe(old, job.now());
  job.detector.Observe(old, job.now());
  EXPECT_THAT(job.detector.Evaluate(job.now()), SizeIs(1));
  EXPECT_EQ(job.detector.counters().repeated_digests, 1U);
}

TEST(HostileTest, OneRankWithCorruptRecordsDoesNotBlindTheDetector) {
  // A simulated job with a straggler, and one rank that adds corrupt records to its own.
  sim::Scenario scenario{sim::Shape::kData, 64, sim::FaultKind::kSlowGpu, 0.5, 1, {}};
  sim::Trace trace(scenario, 77);
  Detector detector(Incarnation{1}, 64);
  Random random(5);
  const uint32_t faulty = (trace.truth().ranks.front() + 9) % 64;
  bool found = false;
  for (double tick_s = 1; trace.iteration() < 60;) {
    trace.Advance();
    for (; tick_s <= trace.horizon_s(); tick_s += 1) {
      while (auto delivery = trace.Next(tick_s)) {
        Digest& digest = *delivery->digest;
        if (digest.ranks.front().rank.value == faulty / 8 * 8) {
          for (int i = 0; i < 100; ++i) {
            CollectiveRecord record;
            if (!digest.ended.empty()) record = digest.ended[0].record;
            record.sequence = random.Below(1000);
            record.bytes = Wild(random);
            record.started_ns = Wild(random) / 4;
            record.ended_ns = record.started_ns + Wild(random) / 4;
            record.blocked_ns = Wild(random);
            digest.ended.push_back({Rank{faulty}, record});
          }
          digest.ranks[faulty % 8].steps = {{Wild(random), Wild(random)}};
        }
        detector.Observe(digest, sim::DetectorTime(delivery->at_s));
      }
      for (const Verdict& verdict : detector.Evaluate(sim::DetectorTime(tick_s))) {
        found |= verdict.ranks == std::vector<Rank>{Rank{trace.truth().ranks.front()}};
      }
    }
  }
  EXPECT_TRUE(found);
}

}  // namespace
}  // namespace holdfast::detect
