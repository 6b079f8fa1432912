// A trainer that writes garbage: for any content of the table, and while it changes, a poll ends,
// writes nothing, and returns plausible numbers.

#include <algorithm>
#include <iterator>
#include <random>
#include <span>
#include <thread>

#include "tests/agent/telemetry/table_fixture.h"
#include "tests/agent/telemetry/telemetry_check.h"

namespace holdfast::agent {
namespace {
using ::testing::IsEmpty;
using ::testing::SizeIs;

class HostileTableTest : public TableFixture {
 protected:
  void SetUp() override { recorder_.Attach(*control_); }
  void TearDown() override { recorder_.Detach(); }

  std::span<std::atomic<uint64_t>> Words() {
    return {reinterpret_cast<std::atomic<uint64_t>*>(&table()),
            sizeof(CollectiveTable) / sizeof(uint64_t)};
  }
  /// Sets a valid layout number, so that the reader continues.
  void Claim() { table().layout = kCollectiveTableMagic | kCollectiveTableVersion; }
  void PollAndCheck(uint64_t now_ns) {
    auto read = reader_.Read(now_ns);
    if (!read) {
      EXPECT_EQ(read.error().code(), ErrorCode::kUnsupported);
      return;
    }
    EXPECT_EQ(ImpossibleNumber(*read), "");
  }

  Recorder recorder_;
};

TEST_F(HostileTableTest, RandomBytesGivePlausibleNumbers) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 50; ++round) {
    // Dense and sparse, large and small numbers: nearly valid tables reach the most code.
    const uint64_t mask = round % 3 == 0 ? ~0ULL : round % 3 == 1 ? 0xFF : 0xFFFF'FFFF;
    for (auto& word : Words()) {
      if (random() % 2 == 0) word = random() & mask;
    }
    Claim();
    PollAndCheck(random() & mask);
    PollAndCheck(random() & mask);
  }
}

TEST_F(HostileTableTest, ConcurrentGarbageGivesPlausibleNumbers) {
  ASSERT_TRUE(DescribeGroup(recorder_).ok());
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (uint64_t seed = 0; seed < 2; ++seed) {
    threads.emplace_back([&, seed] {
      std::mt19937_64 random(seed);
      while (!stop) {
        Words()[random() % Words().size()] = random() >> random() % 64;
        Claim();
      }
    });
  }
  threads.emplace_back([&] {  // the real writer writes concurrently
    while (!stop) {
      recorder_.Step(client::MonotonicNs(), false);
      recorder_.Add({.communicator = kGroup, .peer = 1, .transfers = 1, .bytes = 1});
      recorder_.End(recorder_.Begin(AllReduce(1), {}));
    }
  });
  for (int poll = 0; poll < 500; ++poll) PollAndCheck(client::MonotonicNs());
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

TEST_F(HostileTableTest, JumpingCountersGivePlausibleNumbers) {
  ASSERT_TRUE(DescribeGroup(recorder_).ok());
  recorder_.End(recorder_.Begin(AllReduce(1), {}));
  Read();
  for (uint64_t head : {~0ULL, 0ULL, 1ULL << 40, 5ULL, kRingEntries + 0ULL}) {
    table().ring_head = head;
    table().progress.steps = head;
    for (int poll = 0; poll < 3; ++poll) PollAndCheck(client::MonotonicNs());
  }
  table().ring_head = 0;
  table().progress.steps = 0;
  Read();
  // A trainer that writes valid data again is read again.
  for (int i = 0; i < 2; ++i) recorder_.End(recorder_.Begin(AllReduce(1), {}));
  RankTelemetry seen = Read();
  if (seen.ended.empty()) seen = Read();
  EXPECT_FALSE(seen.completed.empty());
}

TEST_F(HostileTableTest, ImplausibleTimesAreNonsense) {
  ASSERT_TRUE(DescribeGroup(recorder_).ok());
  recorder_.Begin(AllReduce(1), {});
  ASSERT_THAT(Read().in_flight, SizeIs(1));
  CollectiveEntry& entry =
      *std::find_if(std::begin(table().in_flight), std::end(table().in_flight),
                    [](const CollectiveEntry& one) { return one.tag % 2 == 1; });
  const uint64_t before = entry.started_ns;
  for (uint64_t wrong : {~0ULL, 1ULL, before + (1ULL << 50)}) {
    entry.started_ns = wrong;
    const RankTelemetry seen = Read();
    EXPECT_THAT(seen.in_flight, IsEmpty()) << wrong;
    EXPECT_EQ(seen.gaps.nonsense, 1U);
  }
  entry.started_ns = before;
  EXPECT_THAT(Read().in_flight, SizeIs(1));
  entry.what = 0xFF;
  EXPECT_THAT(Read().in_flight, IsEmpty()) << "a kind that does not exist";
}

TEST_F(HostileTableTest, AStepInTheFutureIsNonsense) {
  recorder_.Step(7, false);
  std::atomic<uint64_t>& advanced_ns = table().progress.advanced_ns;
  const uint64_t before = advanced_ns;
  for (uint64_t wrong : {~0ULL, before + (1ULL << 50), 0ULL}) {
    advanced_ns = wrong;
    const RankTelemetry seen = Read();
    EXPECT_FALSE(seen.progress.known) << wrong;
    EXPECT_EQ(seen.gaps.nonsense, 1U) << wrong;
  }
  advanced_ns = before;
  EXPECT_EQ(Read().progress.step, 7U);
}

TEST_F(HostileTableTest, ImplausibleCommunicatorsAreNonsense) {
  ASSERT_TRUE(recorder_.Describe({.id = {5}, .size = 2, .members = {Rank{0}, Rank{1}}}).ok());
  ASSERT_THAT(Read().communicators, SizeIs(1));
  CommunicatorEntry& entry = table().communicators[5];
  auto refused = [&] {
    entry.tag += 2;
    const RankTelemetry seen = Read();
    return seen.communicators.empty() && seen.gaps.nonsense == 1;
  };
  entry.member_count = ~0U;
  EXPECT_TRUE(refused());
  entry.member_count = 2;
  entry.members[1] = 0;
  EXPECT_TRUE(refused()) << "a rank twice";
  entry.members[1] = 1;
  entry.index = 2;
  EXPECT_TRUE(refused());
  entry.index = 0;
  entry.role = 99;
  EXPECT_TRUE(refused());
  entry.role = 0;
  entry.size = 1U << 31;
  EXPECT_TRUE(refused());
  entry.size = 2;
  EXPECT_FALSE(refused());
}

TEST_F(HostileTableTest, ARecordThatStaysIncompleteDoesNotBlockTheReader) {
  ASSERT_TRUE(DescribeGroup(recorder_).ok());
  recorder_.End(recorder_.Begin(AllReduce(1), {}));
  recorder_.End(recorder_.Begin(AllReduce(2), {}));
  table().ring[0].tag = 1;  // its writer was stopped while writing
  EXPECT_THAT(Read().ended, IsEmpty());
  const RankTelemetry seen = Read();
  EXPECT_EQ(seen.gaps.lost, 1U);
  ASSERT_THAT(seen.ended, SizeIs(1));
  EXPECT_EQ(seen.ended[0].bytes, 2U);
}

TEST_F(HostileTableTest, ARecordOfAStoppedWriterIsSkippedNotOverwritten) {
  ASSERT_TRUE(DescribeGroup(recorder_).ok());
  recorder_.End(recorder_.Begin(AllReduce(1), {}));
  table().ring[0].tag = 1;
  for (uint32_t i = 0; i < kRingEntries; ++i) recorder_.End(recorder_.Begin(AllReduce(3), {}));
  EXPECT_EQ(table().ring[0].tag, 1U) << "two writers of one record would tear it";
  EXPECT_EQ(recorder_.dropped(), 1U);
}

}  // namespace
}  // namespace holdfast::agent
