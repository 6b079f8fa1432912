// The agent's reader returns what a trainer's recorder writes.

#include <thread>

#include "tests/agent/telemetry/table_fixture.h"

namespace holdfast::agent {
namespace {
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class TableReaderTest : public TableFixture {
 protected:
  void SetUp() override {
    ASSERT_TRUE(DescribeGroup(recorder_).ok());
    recorder_.Attach(*control_);
  }
  void TearDown() override { recorder_.Detach(); }

  Recorder recorder_;
};

TEST_F(TableReaderTest, NothingIsPresentBeforeATrainerAttaches) {
  recorder_.Detach();
  ForgetWriter(table());
  EXPECT_FALSE(Read().present);
  recorder_.Republish();
  EXPECT_FALSE(Read().present) << "a detached recorder writes nothing";
  recorder_.Attach(*control_);
  const RankTelemetry seen = Read();
  EXPECT_TRUE(seen.present);
  EXPECT_TRUE(seen.restarted);
  EXPECT_THAT(seen.ended, IsEmpty());
}

TEST_F(TableReaderTest, AnOperationIsInFlightAndThenEnds) {
  recorder_.Step(7, false);
  CollectiveRecord record = AllReduce(4096);
  record.dtype = 11;
  record.algorithm = CollectiveAlgorithm::kRing;
  record.protocol = CollectiveProtocol::kLl128;
  record.channels = 3;
  record.peer = 2;
  const uint64_t handle = recorder_.Begin(record, {});
  RankTelemetry seen = Read();
  ASSERT_THAT(seen.in_flight, SizeIs(1));
  const CollectiveRecord flying = seen.in_flight[0].record;
  EXPECT_TRUE(seen.in_flight[0].started);
  EXPECT_EQ(flying.bytes, 4096U);
  EXPECT_EQ(flying.step, 7U);
  EXPECT_EQ(flying.dtype, 11);
  EXPECT_EQ(flying.algorithm, CollectiveAlgorithm::kRing);
  EXPECT_EQ(flying.protocol, CollectiveProtocol::kLl128);
  EXPECT_EQ(flying.channels, 3);
  EXPECT_EQ(flying.peer, 2U);
  EXPECT_THAT(seen.completed, IsEmpty());

  recorder_.End(handle);
  seen = Read();
  EXPECT_THAT(seen.in_flight, IsEmpty());
  ASSERT_THAT(seen.ended, SizeIs(1));
  EXPECT_GE(seen.ended[0].ended_ns, seen.ended[0].started_ns);
  CollectiveRecord expected = flying;
  expected.ended_ns = seen.ended[0].ended_ns;
  EXPECT_EQ(seen.ended[0], expected);
  ASSERT_THAT(seen.completed, SizeIs(1));
  EXPECT_EQ(seen.completed[0].count, 1U);
  EXPECT_THAT(Read().ended, IsEmpty()) << "each record is returned once";
}

TEST_F(TableReaderTest, EnqueuedIsNotStarted) {
  const uint64_t handle = recorder_.Begin(AllReduce(1), {.deferred = true});
  EXPECT_FALSE(Read().in_flight.at(0).started);
  recorder_.Started(handle);
  EXPECT_TRUE(Read().in_flight.at(0).started);
  const uint64_t first = Read().in_flight.at(0).record.started_ns;
  recorder_.Started(handle);
  recorder_.DeviceTime(handle, 12'345);
  recorder_.End(handle);
  const CollectiveRecord ended = Read().ended.at(0);
  EXPECT_EQ(ended.started_ns, first) << "the first start counts";
  EXPECT_EQ(ended.device_ns, 12'345U);
}

TEST_F(TableReaderTest, SequencesCountByKindAndCompletedEndsBeforeTheFirstInFlight) {
  const uint64_t first = recorder_.Begin(AllReduce(1), {});
  const uint64_t second = recorder_.Begin(AllReduce(2), {});
  CollectiveRecord other = AllReduce(3);
  other.kind = CollectiveKind::kBarrier;
  recorder_.End(recorder_.Begin(other, {}));
  recorder_.End(second);
  RankTelemetry seen = Read();
  EXPECT_EQ(seen.in_flight.at(0).record.sequence, 0U);
  ASSERT_THAT(seen.ended, SizeIs(2));
  EXPECT_EQ(seen.ended[0].sequence, 0U) << "the barrier";
  EXPECT_EQ(seen.ended[1].sequence, 1U);
  ASSERT_THAT(seen.completed, SizeIs(1)) << "the first of the all-reduces is not complete";
  EXPECT_EQ(seen.completed[0].kind, CollectiveKind::kBarrier);
  recorder_.End(first);
  seen = Read();
  ASSERT_THAT(seen.completed, SizeIs(2));
  EXPECT_EQ(seen.completed[0].count, 2U);

  CollectiveRecord numbered = AllReduce(4);
  numbered.sequence = 10;
  recorder_.End(recorder_.Begin(numbered, {.numbered = true}));
  EXPECT_EQ(Read().completed.at(0).count, 11U);
}

TEST_F(TableReaderTest, TotalsCountOverlapOnce) {
  const uint64_t a = recorder_.Begin(AllReduce(100), {});
  const uint64_t b = recorder_.Begin(AllReduce(200), {});
  recorder_.End(a);
  recorder_.End(b);
  recorder_.End(recorder_.Begin(AllReduce(400), {}));
  const RankTelemetry seen = Read();
  ASSERT_THAT(seen.ended, SizeIs(3));
  EXPECT_EQ(seen.ended[0].moved_bytes, 0U);
  EXPECT_EQ(seen.ended[1].moved_bytes, 100U);
  EXPECT_EQ(seen.ended[2].moved_bytes, 300U);
  const uint64_t both = seen.ended[1].ended_ns - seen.ended[0].started_ns;
  EXPECT_EQ(seen.ended[2].blocked_ns, both);
}

TEST_F(TableReaderTest, PeersAreSumsSinceTheLastPoll) {
  const PeerTransfers transfer{.communicator = kGroup,
                               .peer = 2,
                               .direction = Direction::kReceive,
                               .transfers = 1,
                               .bytes = 10,
                               .gpu_wait_ns = 1,
                               .peer_wait_ns = 2,
                               .transfer_ns = 3,
                               .flush_ns = 4};
  recorder_.Add(transfer);
  recorder_.Add(transfer);
  RankTelemetry seen = Read();
  ASSERT_THAT(seen.peers, SizeIs(1));
  EXPECT_EQ(seen.peers[0].communicator, kGroup);
  EXPECT_EQ(seen.peers[0].peer, 2U);
  EXPECT_EQ(seen.peers[0].direction, Direction::kReceive);
  EXPECT_EQ(seen.peers[0].transfers, 2U);
  EXPECT_EQ(seen.peers[0].bytes, 20U);
  EXPECT_EQ(seen.peers[0].gpu_wait_ns, 2U);
  EXPECT_EQ(seen.peers[0].peer_wait_ns, 4U);
  EXPECT_EQ(seen.peers[0].transfer_ns, 6U);
  EXPECT_EQ(seen.peers[0].flush_ns, 8U);
  EXPECT_THAT(Read().peers, IsEmpty());
  recorder_.Add(transfer);
  EXPECT_EQ(Read().peers.at(0).bytes, 10U);
}

TEST_F(TableReaderTest, TheTransferThatWaitsLongestIsTheEdge) {
  recorder_.Edge(kGroup, 3, Direction::kSend, EdgeState::kSendWait);  // of an earlier operation
  const uint64_t handle = recorder_.Begin(AllReduce(1), {});
  EXPECT_FALSE(Read().in_flight.at(0).edge.has_value());
  recorder_.Edge(kGroup, 0, Direction::kReceive, EdgeState::kReceiveWait);
  recorder_.Edge(kGroup, 3, Direction::kSend, EdgeState::kSendWait);
  const InFlight flight = Read().in_flight.at(0);
  ASSERT_TRUE(flight.edge.has_value());
  EXPECT_EQ(flight.edge->peer, 0U);
  EXPECT_EQ(flight.edge->state, EdgeState::kReceiveWait);
  recorder_.Add({.communicator = kGroup,
                 .peer = 0,
                 .direction = Direction::kReceive,
                 .transfers = 1,
                 .bytes = 1});
  EXPECT_EQ(Read().in_flight.at(0).edge->peer, 3U);
  recorder_.End(handle);
}

TEST_F(TableReaderTest, TheLeastAdvancedTransferOfAnOperationIsItsEdge) {
  const uint64_t first = recorder_.Begin(AllReduce(1), {});
  const uint64_t second = recorder_.Begin(AllReduce(2), {});
  recorder_.Edge(first, 0, Direction::kReceive, EdgeState::kReceiveWait, 6);
  recorder_.Edge(second, 3, Direction::kSend, EdgeState::kSendWait, 2);
  recorder_.Edge(second, 0, Direction::kReceive, EdgeState::kReceiveWait, 5);
  RankTelemetry seen = Read();
  ASSERT_THAT(seen.in_flight, SizeIs(2));
  EXPECT_FALSE(seen.in_flight[0].edge.has_value()) << "the second operation uses its connection";
  EXPECT_EQ(seen.in_flight[1].edge->peer, 3U);
  EXPECT_EQ(seen.in_flight[1].edge->completed, 2U);
  recorder_.Edge(second, 3, Direction::kSend, EdgeState::kSendWait, 7);
  EXPECT_EQ(Read().in_flight.at(1).edge->peer, 0U);
  recorder_.Edge(second, 0, Direction::kReceive, EdgeState::kIdle, 0);
  EXPECT_EQ(Read().in_flight.at(1).edge->completed, 7U);
  recorder_.End(second);
  const uint64_t third = recorder_.Begin(AllReduce(3), {});
  EXPECT_FALSE(Read().in_flight.at(1).edge.has_value()) << "of an operation that ended";
  recorder_.Edge(second, 3, Direction::kSend, EdgeState::kSendWait, 8);
  EXPECT_FALSE(Read().in_flight.at(1).edge.has_value());
  recorder_.Edge(kGroup, 3, Direction::kSend, EdgeState::kSendWait);
  EXPECT_EQ(Read().in_flight.at(1).edge->completed, std::nullopt) << "not counted";
  recorder_.End(first);
  recorder_.End(third);
}

TEST_F(TableReaderTest, StepsAndTheirTimes) {
  EXPECT_FALSE(Read().progress.known);
  recorder_.Step(5, false);
  EXPECT_EQ(Read().progress.step, 5U);
  recorder_.Step(5, false);
  recorder_.Step(4, true);
  EXPECT_THAT(Read().steps, IsEmpty());
  recorder_.Step(6, true);
  recorder_.Step(2, false);  // restored
  const RankTelemetry seen = Read();
  EXPECT_EQ(seen.progress.step, 2U);
  ASSERT_THAT(seen.steps, SizeIs(2));
  EXPECT_EQ(seen.steps[0].step, 5U);
  EXPECT_EQ(seen.steps[1].step, 6U);
  EXPECT_EQ(seen.progress.last_step_ns, seen.steps[1].duration_ns);
  for (uint64_t step = 10; step < 110; ++step) recorder_.Step(step, false);
  const RankTelemetry many = Read();
  EXPECT_THAT(many.steps, SizeIs(kStepRecords));
  EXPECT_EQ(many.gaps.lost, 100 - kStepRecords);
}

TEST_F(TableReaderTest, CommunicatorsAreAddedAndRemoved) {
  const Communicator communicator{.id = {7},
                                  .role = CommunicatorRole::kTensor,
                                  .size = 3,
                                  .index = 2,
                                  .members = {Rank{3}, Rank{1}, Rank{4}}};
  ASSERT_TRUE(recorder_.Describe(communicator).ok());
  RankTelemetry seen = Read();
  ASSERT_THAT(seen.communicators, SizeIs(2));
  EXPECT_EQ(seen.communicators[0].id, CommunicatorId{7});
  EXPECT_EQ(seen.communicators[0].role, CommunicatorRole::kTensor);
  EXPECT_THAT(seen.communicators[0].members, ElementsAre(Rank{3}, Rank{1}, Rank{4}));
  EXPECT_THAT(seen.communicators[1].members, IsEmpty());
  EXPECT_TRUE(seen.communicators_changed);
  EXPECT_FALSE(Read().communicators_changed);
  recorder_.Add({.communicator = {7}, .peer = 1, .transfers = 1, .bytes = 1});
  recorder_.Forget({7});
  seen = Read();
  EXPECT_THAT(seen.communicators, SizeIs(1));
  EXPECT_THAT(seen.peers, IsEmpty());
  recorder_.Add({.communicator = {7}, .peer = 1, .transfers = 1, .bytes = 1});
  EXPECT_EQ(Read().gaps.dropped, 1U);

  EXPECT_THAT(DescribeGroup(recorder_, {8}, 2, 2).message(), HasSubstr("index 2"));
  EXPECT_EQ(recorder_.Describe({.id = {8}, .size = 2, .members = communicator.members}).code(),
            ErrorCode::kInvalidArgument);
}

TEST_F(TableReaderTest, TooManyCommunicatorsAreRefused) {
  for (uint64_t id = 100; id < 100 + kCommunicatorsMax - 1; ++id) {
    ASSERT_TRUE(DescribeGroup(recorder_, {id}).ok()) << id;
  }
  EXPECT_EQ(DescribeGroup(recorder_, {999}).code(), ErrorCode::kResourceExhausted);
  EXPECT_TRUE(DescribeGroup(recorder_, {100}, 9, 8).ok()) << "an existing one may change";
  recorder_.Forget({101});
  EXPECT_TRUE(DescribeGroup(recorder_, {999}).ok());
  EXPECT_THAT(Read().communicators, SizeIs(kCommunicatorsMax));
}

TEST_F(TableReaderTest, FullTablesDropAndCount) {
  std::vector<uint64_t> handles;
  for (uint32_t i = 0; i < kInFlightMax; ++i) handles.push_back(recorder_.Begin(AllReduce(1), {}));
  EXPECT_EQ(recorder_.Begin(AllReduce(1), {}), 0U);
  recorder_.End(0);
  RankTelemetry seen = Read();
  EXPECT_THAT(seen.in_flight, SizeIs(kInFlightMax));
  EXPECT_EQ(seen.gaps.dropped, 1U);
  for (uint64_t handle : handles) recorder_.End(handle);
  EXPECT_NE(recorder_.Begin(AllReduce(1), {}), 0U);
  EXPECT_EQ(recorder_.dropped(), 1U);
}

TEST_F(TableReaderTest, ARingThatWrapsLosesTheOldest) {
  for (uint32_t i = 0; i < kRingEntries + 10; ++i) {
    recorder_.End(recorder_.Begin(AllReduce(i), {}));
  }
  Read();
  for (uint32_t i = 0; i < kRingEntries + 10; ++i) {
    recorder_.End(recorder_.Begin(AllReduce(i), {}));
  }
  const RankTelemetry seen = Read();
  ASSERT_THAT(seen.ended, SizeIs(kRingEntries));
  EXPECT_EQ(seen.ended.front().bytes, 10U);
  EXPECT_EQ(seen.gaps.lost, 10U);
}

TEST_F(TableReaderTest, WrongHandlesAreCountedAndChangeNothing) {
  const uint64_t handle = recorder_.Begin(AllReduce(1), {});
  recorder_.End(handle);
  recorder_.End(handle);
  recorder_.Started(handle);
  for (uint64_t wrong : std::vector<uint64_t>{~0ULL, 1, handle + (1U << 17), handle ^ 5}) {
    recorder_.End(wrong);
  }
  const uint64_t next = recorder_.Begin(AllReduce(2), {.deferred = true});
  EXPECT_NE(next, handle);
  recorder_.Started(handle);
  const RankTelemetry seen = Read();
  EXPECT_THAT(seen.ended, SizeIs(1));
  ASSERT_THAT(seen.in_flight, SizeIs(1));
  EXPECT_FALSE(seen.in_flight[0].started);
  EXPECT_EQ(seen.gaps.dropped, 5U);
}

TEST_F(TableReaderTest, SamplingIsRequestedAndRunsOut) {
  EXPECT_FALSE(recorder_.Sampling());
  RequestSampling(table(), 2);
  for (bool sampled : {true, true, false}) {
    const uint64_t handle = recorder_.Begin(AllReduce(1), {});
    recorder_.End(handle);
    EXPECT_EQ((Read().ended.at(0).flags & kSampled) != 0, sampled);
  }
  EXPECT_FALSE(recorder_.Sampling());
  RequestSampling(table(), 2);
  recorder_.End(recorder_.Begin(AllReduce(1), {}));
  EXPECT_TRUE(recorder_.Sampling());
  RequestSampling(table(), ~0U);  // a request for too many operations is limited
  for (int i = 0; i < 10'001; ++i) recorder_.End(recorder_.Begin(AllReduce(1), {}));
  EXPECT_FALSE(recorder_.Sampling());
}

TEST_F(TableReaderTest, ANewAgentReadsTheStateAndANewProcessStartsEmpty) {
  recorder_.Step(3, false);
  const uint64_t handle = recorder_.Begin(AllReduce(5), {});
  recorder_.Detach();
  auto other = std::make_unique<SegmentControl>();
  recorder_.Attach(*other);
  TableReader reader(*other);
  auto seen = reader.Read(client::MonotonicNs());
  ASSERT_TRUE(seen.has_value());
  EXPECT_EQ(seen->progress.step, 3U);
  ASSERT_THAT(seen->in_flight, SizeIs(1));
  EXPECT_THAT(seen->communicators, SizeIs(1));

  // Here the trainer was killed, and its successor uses the same memory.
  EXPECT_THAT(Read().in_flight, SizeIs(1)) << "the old table is unchanged";
  ForgetWriter(table());
  EXPECT_FALSE(Read().present);
  Recorder next;
  next.Attach(*control_);
  const RankTelemetry fresh = Read();
  EXPECT_TRUE(fresh.restarted);
  EXPECT_THAT(fresh.in_flight, IsEmpty());
  EXPECT_FALSE(fresh.progress.known);
  next.Detach();
  recorder_.End(handle);
  EXPECT_THAT(reader.Read(client::MonotonicNs())->ended, SizeIs(1));
}

TEST_F(TableReaderTest, WithoutAnAgentOnlyOperationsInFlightAreKept) {
  recorder_.Detach();
  for (int i = 0; i < 5000; ++i) recorder_.End(recorder_.Begin(AllReduce(1), {}));
  const uint64_t handle = recorder_.Begin(AllReduce(2), {});
  recorder_.Attach(*control_);
  const RankTelemetry seen = Read();
  EXPECT_THAT(seen.ended, IsEmpty());
  ASSERT_THAT(seen.in_flight, SizeIs(1));
  EXPECT_EQ(seen.in_flight[0].record.sequence, 5000U);
  EXPECT_EQ(seen.completed.at(0).count, 5000U);
  recorder_.End(handle);
}

TEST_F(TableReaderTest, AWriterOfAnotherReleaseIsNamed) {
  table().layout = kCollectiveTableMagic | 9;
  auto read = reader_.Read(1);
  ASSERT_FALSE(read.has_value());
  EXPECT_EQ(read.error().code(), ErrorCode::kUnsupported);
  EXPECT_THAT(read.error().message(), HasSubstr("version 9, this agent reads version 2"));
  table().layout = 12'345;
  read = reader_.Read(1);
  ASSERT_FALSE(read.has_value());
  EXPECT_THAT(read.error().message(), HasSubstr("no collective table"));
}

TEST_F(TableReaderTest, ManyThreadsLoseNothing) {
  constexpr int kThreads = 4;
  constexpr int kTurns = 5000;
  Read();
  std::atomic<int> running{kThreads};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int turn = 0; turn < kTurns; ++turn) {
        // bytes, device time and peer are derived from one value, so a torn record is detected.
        CollectiveRecord record = AllReduce(static_cast<uint64_t>(turn));
        record.peer = static_cast<uint32_t>(turn);
        const uint64_t handle = recorder_.Begin(record, {});
        recorder_.DeviceTime(handle, static_cast<uint64_t>(turn));
        recorder_.End(handle);
      }
      --running;
    });
  }
  uint64_t ended = 0;
  uint64_t lost = 0;
  bool last = false;
  for (int quiet = 0; quiet < 3; quiet += last ? 1 : 0) {
    last = running == 0;
    const RankTelemetry seen = Read();
    EXPECT_EQ(seen.gaps.nonsense, 0U);
    for (const CollectiveRecord& record : seen.ended) {
      EXPECT_EQ(record.bytes, record.peer);
      EXPECT_EQ(record.bytes, record.device_ns);
    }
    ended += seen.ended.size();
    lost += seen.gaps.lost;
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ended + lost, uint64_t{kThreads} * kTurns);
  EXPECT_GT(ended, 0U);
  EXPECT_THAT(Read().in_flight, IsEmpty());
  EXPECT_EQ(Read().completed.at(0).count, uint64_t{kThreads} * kTurns);
}

TEST_F(TableReaderTest, TheTableMayBeReplacedWhileThreadsRecord) {
  std::atomic<bool> stop{false};
  std::thread trainer([&] {
    while (!stop) recorder_.End(recorder_.Begin(AllReduce(1), {}));
  });
  auto other = std::make_unique<SegmentControl>();
  for (int i = 0; i < 200; ++i) {
    recorder_.Detach();
    recorder_.Attach(i % 2 == 0 ? *other : *control_);
    std::this_thread::yield();
  }
  stop = true;
  trainer.join();
  EXPECT_THAT(Read().in_flight, IsEmpty());
}

}  // namespace
}  // namespace holdfast::agent
