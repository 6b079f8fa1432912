// Tests which node or link the times of probes name.

#include "coordinator/detect/probe_times.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <utility>

#include "tests/coordinator/detect/detect_test_util.h"

namespace holdfast::detect {
namespace {
using ::testing::ElementsAre;

constexpr double kMillisecond = 1e6;

/// Every node probes the next `peers` nodes `probes` times. `usual_ms` is noisy: a probe takes up
/// to twice as long.
ProbeTimes Probe(int nodes, int peers, int probes, double usual_ms,
                 const std::function<double(int, int)>& extra_ms) {
  ProbeTimes times;
  std::mt19937 random(7);
  std::uniform_real_distribution<double> noise(1, 2);
  for (int probe = 0; probe < probes; ++probe) {
    for (int from = 0; from < nodes; ++from) {
      for (int i = 1; i <= peers; ++i) {
        const int to = (from + i) % nodes;
        const double took = usual_ms * noise(random) + extra_ms(from, to) * noise(random);
        times.Add(fmt::format("n{}", from), fmt::format("n{}", to),
                  static_cast<uint64_t>(took * kMillisecond));
      }
    }
  }
  return times;
}

double None(int /*from*/, int /*to*/) { return 0; }

TEST(ProbeTimesTest, ASlowNodeIsNamed) {
  for (const int nodes : {3, 4, 8, 64}) {
    const int peers = std::min(nodes - 1, 4);
    const auto found = Probe(nodes, peers, 10, 3, [](int from, int to) {
                         return from == 2 || to == 2 ? 60 : 0;
                       }).Find();
    ASSERT_TRUE(found.has_value() == (nodes > 3)) << nodes << " nodes";
    if (nodes == 3) continue;  // one pair is left to compare with
    EXPECT_THAT(found->nodes, ElementsAre("n2"));
    EXPECT_GT(found->took_ns, 60 * kMillisecond);
    EXPECT_LT(found->usual_ns, 6 * kMillisecond);
  }
}

/// A busy processor delays every fourth probe of any pair by much.
TEST(ProbeTimesTest, ABusyProcessorHidesNoSlowNode) {
  int number = 0;
  const auto found = Probe(4, 3, 20, 10, [&number](int from, int to) {
                       return (from == 1 || to == 1 ? 25 : 0) + (++number % 4 == 0 ? 200 : 0);
                     }).Find();
  ASSERT_TRUE(found.has_value());
  EXPECT_THAT(found->nodes, ElementsAre("n1"));
}

TEST(ProbeTimesTest, ASlowLinkIsNamedByItsEnds) {
  const auto found = Probe(4, 3, 10, 3, [](int from, int to) {
                       return std::min(from, to) == 1 && std::max(from, to) == 3 ? 60 : 0;
                     }).Find();
  ASSERT_TRUE(found.has_value());
  EXPECT_THAT(found->nodes, ElementsAre("n1", "n3"));
  EXPECT_EQ(found->pairs, 1U);
  EXPECT_EQ(found->of, 6U);
}

TEST(ProbeTimesTest, EqualTimesNameNone) {
  EXPECT_FALSE(Probe(4, 3, 30, 3, None).Find().has_value());
  EXPECT_FALSE(Probe(64, 4, 30, 3, None).Find().has_value());
  // The fabric is slow as a whole.
  EXPECT_FALSE(Probe(8, 4, 30, 80, None).Find().has_value());
}

TEST(ProbeTimesTest, ShortDelaysAndFewProbesNameNone) {
  const auto slow = [](double ms) {
    return [ms](int from, int to) { return from == 2 || to == 2 ? ms : 0; };
  };
  EXPECT_FALSE(Probe(4, 3, 10, 0.2, slow(1)).Find().has_value()) << "a busy processor";
  EXPECT_FALSE(Probe(4, 3, 2, 3, slow(60)).Find().has_value());
  EXPECT_FALSE(Probe(2, 1, 10, 3, slow(60)).Find().has_value());
  EXPECT_FALSE(ProbeTimes().Find().has_value());
}

TEST(ProbeTimesTest, ARepeatedResultIsOneProbe) {
  ProbeTimes times;
  for (int repeat = 0; repeat < 20; ++repeat) {
    for (int from = 0; from < 4; ++from) {
      for (int to = 0; to < 4; ++to) {
        times.Add(fmt::format("n{}", from), fmt::format("n{}", to),
                  from == 2 || to == 2 ? 90'000'000 : 3'000'000);
      }
    }
  }
  EXPECT_FALSE(times.Find().has_value()) << "two probes of each pair";
}

/// Four nodes with a rank each, whose library does not report connections. Transfers take twice as
/// long after a minute and a half, and probes of node 2 take `slow_ms`. Returns how long it then
/// takes until slow transfers are reported, and the blamed nodes.
std::pair<int, std::vector<std::string>> TimeToLocate(uint64_t slow_ms) {
  constexpr uint32_t kNodes = 4;
  Detector detector(Incarnation{1}, kNodes);
  Communicator all{.id = {kAll}, .role = CommunicatorRole::kData};
  for (uint32_t rank = 0; rank < kNodes; ++rank) all.members.push_back(Rank{rank});
  uint64_t sequence = 0;
  for (int second = 1; second < 300; ++second) {
    const bool slow = second > 90;
    const Clock::TimePoint now = kNow + std::chrono::seconds(second);
    for (uint32_t rank = 0; rank < kNodes; ++rank) {
      Digest digest;
      digest.node = "n" + std::to_string(rank);
      digest.incarnation = Incarnation{1};
      digest.world = kNodes;
      digest.agent_start = 1;
      digest.number = static_cast<uint64_t>(second);
      digest.taken_ns = static_cast<uint64_t>(second) * 1'000'000'000;
      digest.communicators = {all};
      digest.ranks.resize(1);
      digest.ranks[0].rank = Rank{rank};
      digest.ranks[0].step = static_cast<uint64_t>(second);
      digest.ranks[0].steps = {{static_cast<uint64_t>(second) - 1, 1'000'000'000}};
      for (uint64_t i = 0; i < 4; ++i) {
        RankRecord ended;
        ended.rank = Rank{rank};
        CollectiveRecord& record = ended.record;
        record.communicator = {kAll};
        record.kind = kReduce;
        record.sequence = sequence + i;
        record.bytes = 1 << 20;
        record.started_ns = digest.taken_ns - 900 * kMs + i * 200 * kMs;
        const uint64_t took_ms = (slow ? 100 : 50) + (record.sequence * 7 + rank) % 5;
        record.ended_ns = record.started_ns + took_ms * kMs;
        digest.ended.push_back(ended);
      }
      for (uint32_t other = 0; detector.needs_probes() && other < kNodes; ++other) {
        if (other == rank) continue;
        const bool far = rank == 2 || other == 2;
        digest.reach.push_back({"n" + std::to_string(other), true,
                                (far ? slow_ms : 2) * kMs + static_cast<uint64_t>(second)});
      }
      detector.Observe(digest, now);
    }
    sequence += 4;
    const auto verdicts = detector.Evaluate(now);
    if (!verdicts.empty()) return {second - 90, verdicts[0].nodes};
  }
  return {0, {}};
}

TEST(ProbeTimesTest, SlowTransfersAreReportedAsSoonAsProbesLocateThem) {
  const auto [located_s, nodes] = TimeToLocate(40);
  EXPECT_GE(located_s, 25);
  EXPECT_LE(located_s, 35);
  EXPECT_THAT(nodes, ElementsAre("n2"));
  const auto [unknown_s, none] = TimeToLocate(2);
  EXPECT_GE(unknown_s, 75);
  EXPECT_THAT(none, testing::IsEmpty());
}

}  // namespace
}  // namespace holdfast::detect
