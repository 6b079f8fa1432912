// Hangs told by hand: each class, and what must not be taken for one.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/coordinator/detect/detect_test_util.h"

namespace holdfast::detect {
namespace {
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint64_t kAll = 0xa;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// Six ranks in one communicator, the given ones in its operation 5 for `age_s`.
Told InOperation(const std::vector<uint32_t>& ranks, double age_s) {
  Told job(6);
  job.AddComm(kAll, Role::kData, {0, 1, 2, 3, 4, 5});
  job.Evaluate();
  job.Pass(seconds(8));
  for (uint32_t rank : ranks) job.Fly(rank, kAll, kReduce, 5, age_s);
  return job;
}

TEST(HangTest, TheRankThatDoesNotComeIsBlamed) {
  Told job = InOperation({0, 1, 2, 4, 5}, 6);
  const auto verdicts = job.Evaluate();
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_EQ(verdicts[0].fault, FaultClass::kComputeHang);
  EXPECT_THAT(verdicts[0].ranks, ElementsAre(Rank{3}));
  EXPECT_THAT(verdicts[0].nodes, ElementsAre("n1"));
  EXPECT_EQ(verdicts[0].action, Action::kRestartWithoutRoot);
  EXPECT_THAT(verdicts[0].evidence[0], HasSubstr("5 of 6 ranks have been in allreduce 5"));
  EXPECT_THAT(verdicts[0].evidence[0], HasSubstr("6.0 s"));
  EXPECT_EQ(verdicts[0].lasting_ns, 6'000'000'000U);
}

TEST(HangTest, NothingBeforeFiveSeconds) {
  Told job = InOperation({0, 1, 2, 4, 5}, 4.9);
  EXPECT_THAT(job.Evaluate(), IsEmpty());
}

TEST(HangTest, WhereTheRankIsIsSaid) {
  struct Case {
    char process_state;
    const char* words;
  };
  for (const Case& c : {Case{'T', "it is stopped"}, Case{'D', "it waits for I/O in the kernel"},
                        Case{'S', "it sleeps"}, Case{'R', "it runs"}}) {
    Told job = InOperation({0, 1, 2, 4, 5}, 6);
    job.state(3).process_state = c.process_state;
    EXPECT_THAT(job.Evaluate()[0].evidence[1], HasSubstr(c.words));
  }
  Told job = InOperation({0, 1, 2, 4, 5}, 6);
  job.Fly(3, kAll, kReduce, 5, 7, 1024, {}, FlightState::kEnqueued);
  EXPECT_THAT(job.Evaluate()[0].evidence[1], HasSubstr("its GPU is stuck"));
}

TEST(HangTest, ADeadProcessIsToldAtOnceAndIsTheOnlyRoot) {
  Told job = InOperation({0, 1, 2, 4, 5}, 0.1);
  job.state(3).alive = false;
  auto verdicts = job.Evaluate();
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_EQ(verdicts[0].fault, FaultClass::kDead);
  EXPECT_THAT(verdicts[0].ranks, ElementsAre(Rank{3}));
  job.Land();
  for (uint32_t rank : {0U, 1U, 2U, 4U, 5U}) job.Fly(rank, kAll, kReduce, 5, 60);
  EXPECT_THAT(job.Evaluate(), SizeIs(1));
}

TEST(HangTest, ARankThatFinishedIsNotDead) {
  Told job = InOperation({}, 0);
  job.state(3).alive = false;
  job.state(3).finished = true;
  EXPECT_THAT(job.Evaluate(), IsEmpty());
}

TEST(HangTest, ASilentNodesRankIsDeadOnlyWhenOthersWaitForIt) {
  Told job = InOperation({}, 0);
  job.silent = 1;
  job.Pass(seconds(60));
  EXPECT_THAT(job.Evaluate(), IsEmpty());
  for (uint32_t rank : {0U, 1U, 4U, 5U}) job.Fly(rank, kAll, kReduce, 5, 6);
  const auto verdicts = job.Evaluate();
  ASSERT_THAT(verdicts, SizeIs(2));
  EXPECT_EQ(verdicts[0].fault, FaultClass::kDead);
  EXPECT_THAT(verdicts[0].evidence[1], HasSubstr("has been silent for"));
}

TEST(HangTest, MarkedPhasesExcuseUntilTheirPatienceHasPassed) {
  Told job = InOperation({0, 1, 2, 4, 5}, 30);
  job.state(3).phases = static_cast<uint8_t>(Phase::kCheckpoint);
  EXPECT_THAT(job.Evaluate(), IsEmpty());
  job.state(3).phases = 0;
  job.Pass(seconds(2));
  EXPECT_THAT(job.Evaluate(), IsEmpty()) << "it is on its way";
  job.Pass(seconds(4));
  EXPECT_THAT(job.Evaluate(), SizeIs(1));
}

TEST(HangTest, BlameFollowsTheWaitingToItsEnd) {
  // 0, 1 | 2, 3 in pairs; 1 and 3 also together. 3 does not come to its pair: 2 waits for it, and
  // so do 1, which is in their common operation, and 0, whom 1 does not come to.
  Told job(4);
  job.AddComm(1, Role::kTensor, {0, 1});
  job.AddComm(2, Role::kTensor, {2, 3});
  job.AddComm(3, Role::kData, {1, 3});
  job.Evaluate();
  job.Pass(seconds(8));
  job.Fly(0, 1, kReduce, 5, 7);
  job.Fly(1, 3, kReduce, 5, 7);
  job.Fly(2, 2, kReduce, 5, 7);
  const auto verdicts = job.Evaluate();
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_THAT(verdicts[0].ranks, ElementsAre(Rank{3}));
}

TEST(HangTest, TwoRootsAreTwoVerdicts) {
  Told job = InOperation({0, 1, 2, 3}, 6);
  const auto verdicts = job.Evaluate();
  ASSERT_THAT(verdicts, SizeIs(2));
  EXPECT_THAT(verdicts[0].ranks, ElementsAre(Rank{4}));
  EXPECT_THAT(verdicts[1].ranks, ElementsAre(Rank{5}));
}

TEST(HangTest, MoreNodesThanFailByThemselvesAreAFabricFault) {
  Told job = InOperation({0}, 6);
  const auto verdicts = job.Evaluate();
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_EQ(verdicts[0].fault, FaultClass::kFabric);
  EXPECT_EQ(verdicts[0].action, Action::kAlert);
  EXPECT_THAT(verdicts[0].nodes, IsEmpty());
}

TEST(HangTest, ACompleteOperationIsACommunicationHang) {
  Told job(4);
  job.AddComm(kAll, Role::kData, {0, 1, 2, 3});
  job.Evaluate();
  job.Pass(seconds(8));
  auto edge = [](uint32_t peer, Direction direction, EdgeState state, uint64_t steps) {
    return PeerEdge{Rank{peer}, direction, state, steps};
  };
  job.Fly(0, kAll, kReduce, 5, 6, 1024, edge(1, Direction::kSend, EdgeState::kSendPeerWait, 9));
  job.Fly(1, kAll, kReduce, 5, 6, 1024, edge(2, Direction::kSend, EdgeState::kSendWait, 7));
  job.Fly(2, kAll, kReduce, 5, 6, 1024, edge(1, Direction::kRecv, EdgeState::kRecvWait, 7));
  job.Fly(3, kAll, kReduce, 5, 6, 1024, edge(2, Direction::kRecv, EdgeState::kRecvWait, 8));
  const auto verdicts = job.Evaluate();
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_EQ(verdicts[0].fault, FaultClass::kCommHang);
  EXPECT_EQ(verdicts[0].edge, (Edge{Rank{1}, Rank{2}}));
  EXPECT_THAT(verdicts[0].nodes, ElementsAre("n0", "n1"));
}

/// Seconds after which every node has told who answers it.
constexpr uint32_t kAllHaveAnswered = 9;

/// A ring over four nodes of two ranks: each rank waits for the one before it, whoever is cut off.
Told StuckRing(uint32_t for_s = 6) {
  Told job(8);
  job.AddComm(kAll, Role::kData, {0, 1, 2, 3, 4, 5, 6, 7});
  for (uint32_t rank = 0; rank < 8; ++rank) {
    const PeerEdge edge{Rank{(rank + 7) % 8}, Direction::kRecv, EdgeState::kRecvWait, 0};
    job.Fly(rank, kAll, kReduce, 5, for_s, 1024, edge);
  }
  return job;
}

TEST(HangTest, ANodeThatNobodyReachesIsBlamedForTheWholeRing) {
  for (uint32_t node = 0; node < 4; ++node) {
    SCOPED_TRACE(node);
    Told job = StuckRing();
    std::set<std::pair<uint32_t, uint32_t>> cut;
    for (uint32_t other = 0; other < 4; ++other) cut.insert({node, other});
    job.AskOthers(cut);
    job.Evaluate();  // who is asked about is known from the first words on
    job.Pass(std::chrono::milliseconds(100));
    const auto verdicts = job.Evaluate();
    ASSERT_EQ(verdicts.size(), 1U);
    EXPECT_EQ(verdicts[0].fault, FaultClass::kCommHang);
    EXPECT_THAT(verdicts[0].nodes, ElementsAre("n" + std::to_string(node)));
    EXPECT_THAT(verdicts[0].ranks, ElementsAre(Rank{2 * node}, Rank{2 * node + 1}));
    EXPECT_FALSE(verdicts[0].edge.has_value());
    EXPECT_EQ(verdicts[0].action, Action::kRestartWithoutRoot);
  }
}

TEST(HangTest, ALinkThatIsCutIsBlamedWhereBothEndsReachOthers) {
  Told job = StuckRing(kAllHaveAnswered);
  job.AskOthers({{1, 2}});
  job.Evaluate();
  job.Pass(std::chrono::milliseconds(100));
  const auto verdicts = job.Evaluate();
  ASSERT_EQ(verdicts.size(), 1U);
  EXPECT_EQ(verdicts[0].edge, (Edge{Rank{2}, Rank{4}}));
  EXPECT_THAT(verdicts[0].nodes, ElementsAre("n1", "n2"));
  EXPECT_THAT(verdicts[0].evidence.back(), HasSubstr("n1 and n2 do not reach each other"));
}

TEST(HangTest, WhatLooksLikeACutLinkWaitsForTheAnswersOfTheOthers) {
  Told job = StuckRing();
  job.AskOthers({{1, 2}});
  job.Evaluate();
  job.Pass(std::chrono::milliseconds(100));
  EXPECT_TRUE(job.Evaluate().empty());
}

TEST(HangTest, WithoutAnAnswerOfTheNetworkTheConnectionsAreFollowed) {
  using Cuts = std::set<std::pair<uint32_t, uint32_t>>;
  // All is well; nobody reaches anybody; two halves.
  for (const Cuts& cut : {Cuts{}, Cuts{{0, 1}, {0, 2}, {0, 3}, {1, 2}, {1, 3}, {2, 3}},
                          Cuts{{0, 2}, {0, 3}, {1, 2}, {1, 3}}}) {
    Told job = StuckRing(kAllHaveAnswered);
    job.AskOthers(cut);
    job.Evaluate();
    job.Pass(std::chrono::milliseconds(100));
    const auto verdicts = job.Evaluate();
    ASSERT_EQ(verdicts.size(), 1U);
    EXPECT_TRUE(verdicts[0].edge.has_value());
    EXPECT_EQ(verdicts[0].confidence, 0.8);
  }
}

TEST(HangTest, ANodeThatAskedOneOtherMayHaveLostThatLinkAlone) {
  Told job = StuckRing(kAllHaveAnswered);
  job.Evaluate();
  job.Pass(std::chrono::milliseconds(100));
  const std::vector<Reach> told[] = {
      {{"n1", false}}, {{"n0", false}, {"n2", true}}, {{"n3", true}}, {{"n2", true}}};
  for (uint32_t node = 0; node < 4; ++node) {
    Digest digest = job.DigestOf(node);
    digest.reach = told[node];
    job.detector.Observe(digest, job.now());
  }
  const auto verdicts = job.detector.Evaluate(job.now());
  ASSERT_EQ(verdicts.size(), 1U);
  EXPECT_EQ(verdicts[0].confidence, 0.8);
}

TEST(HangTest, OneAgentAloneCutsNobodyOff) {
  Told job = StuckRing(kAllHaveAnswered);
  job.AskOthers({}, 2);
  job.Evaluate();
  job.Pass(std::chrono::milliseconds(100));
  const auto verdicts = job.Evaluate();
  ASSERT_EQ(verdicts.size(), 1U);
  EXPECT_EQ(verdicts[0].confidence, 0.8) << "others say that they had its answers";
}

TEST(HangTest, WhoIsStoppedInAnOperationIsTheRootAndNotItsConnection) {
  Told job = InOperation({0, 1, 2, 3, 4, 5}, 6);
  job.state(3).process_state = 'T';
  const auto verdicts = job.Evaluate();
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_EQ(verdicts[0].fault, FaultClass::kComputeHang);
  EXPECT_THAT(verdicts[0].ranks, ElementsAre(Rank{3}));
  EXPECT_THAT(verdicts[0].evidence[0], HasSubstr("rank 3 is not running"));
}

TEST(HangTest, AReceiverThatTakesNothingIsBlamedAsARank) {
  Told job(4);
  job.AddComm(kAll, Role::kData, {0, 1, 2, 3});
  job.Evaluate();
  job.Pass(seconds(8));
  for (uint32_t rank = 0; rank < 4; ++rank) {
    std::optional<PeerEdge> edge;
    if (rank == 1) edge = PeerEdge{Rank{2}, Direction::kSend, EdgeState::kSendPeerWait, 3};
    job.Fly(rank, kAll, kReduce, 5, 6, 1024, edge);
  }
  const auto verdicts = job.Evaluate();
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_THAT(verdicts[0].ranks, ElementsAre(Rank{2}));
}

TEST(HangTest, DifferentSizesAreASoftwareMismatchAndEvictNobody) {
  Told job = InOperation({0, 1, 2, 3, 4}, 6);
  job.Fly(5, kAll, kReduce, 5, 6, 2048);
  const auto verdicts = job.Evaluate();
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_EQ(verdicts[0].fault, FaultClass::kSoftwareMismatch);
  EXPECT_THAT(verdicts[0].ranks, ElementsAre(Rank{5}));
  EXPECT_THAT(verdicts[0].nodes, IsEmpty());
  EXPECT_EQ(verdicts[0].action, Action::kRestartInPlace);
}

TEST(HangTest, DifferentSizesOfAnAllToAllAreUsual) {
  Told job(4);
  job.AddComm(kAll, Role::kExpert, {0, 1, 2, 3});
  job.Evaluate();
  job.Pass(seconds(8));
  for (uint32_t rank : {0U, 1U, 2U}) job.Fly(rank, kAll, Func::kAllToAll, 5, 6, 1024 + rank);
  const auto verdicts = job.Evaluate();
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_EQ(verdicts[0].fault, FaultClass::kComputeHang);
}

TEST(HangTest, DifferentOrderInOneCommunicatorIsASoftwareMismatch) {
  Told job(4);
  job.AddComm(kAll, Role::kData, {0, 1, 2, 3});
  job.Evaluate();
  job.Pass(seconds(8));
  for (uint32_t rank : {0U, 1U, 2U}) job.Fly(rank, kAll, kReduce, 5, 6);
  job.Fly(3, kAll, Func::kAllGather, 5, 6);
  const auto verdicts = job.Evaluate();
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_EQ(verdicts[0].fault, FaultClass::kSoftwareMismatch);
  EXPECT_THAT(verdicts[0].ranks, ElementsAre(Rank{3}));
}

TEST(HangTest, ACircleOverCommunicatorsIsADeadlock) {
  Told job(3);
  job.AddComm(1, Role::kTensor, {0, 1});
  job.AddComm(2, Role::kTensor, {1, 2});
  job.AddComm(3, Role::kData, {0, 2});
  job.Evaluate();
  job.Pass(seconds(8));
  job.Fly(0, 1, kReduce, 5, 6);
  job.Fly(1, 2, kReduce, 5, 6);
  job.Fly(2, 3, kReduce, 5, 6);
  const auto verdicts = job.Evaluate();
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_EQ(verdicts[0].fault, FaultClass::kProgramDeadlock);
  EXPECT_THAT(verdicts[0].nodes, IsEmpty());
  EXPECT_THAT(verdicts[0].evidence, SizeIs(3));
}

TEST(HangTest, WordsOfDifferentTimesMakeNoCircle) {
  // First 1 waited for 0, by now 0 waits for 1; 1's word is the older one.
  Told job(4);
  job.AddComm(kAll, Role::kPipeline, {0, 1, 2, 3});
  job.Evaluate();
  job.Pass(seconds(8));
  job.Fly(2, kAll, Func::kRecv, 0, 8, 1024,
          PeerEdge{Rank{0}, Direction::kRecv, EdgeState::kRecvWait, 0});
  job.Fly(0, kAll, Func::kRecv, 0, 1, 1024,
          PeerEdge{Rank{2}, Direction::kRecv, EdgeState::kRecvWait, 0});
  EXPECT_THAT(job.Evaluate(), IsEmpty());
}

TEST(HangTest, WhoHasLeftAnOperationIsNotAbsent) {
  Told job = InOperation({}, 0);
  auto tell = [&] {
    for (uint32_t node : {0U, 1U, 2U}) {
      Digest digest = job.DigestOf(node);
      for (const RankState& state : digest.ranks) {
        if (node != 0) digest.completed.push_back({state.rank, CommId{kAll}, kReduce, 6});
      }
      job.detector.Observe(digest, job.now());
    }
  };
  tell();
  job.Pass(seconds(8));
  for (uint32_t rank : {0U, 1U}) job.Fly(rank, kAll, kReduce, 5, 8);
  tell();
  EXPECT_THAT(job.detector.Evaluate(job.now()), IsEmpty());
}

TEST(HangTest, WhoseCommunicatorsAreNotToldYetIsNotTakenForAbsent) {
  Told job(6);
  job.AddComm(kAll, Role::kData, {0, 1, 2, 3, 4, 5});
  auto tell = [&](bool all) {
    for (uint32_t node = 0; node < 3; ++node) {
      Digest digest = job.DigestOf(node);
      if (node == 2 && !all) digest.communicators.clear();  // those that had them were lost
      job.detector.Observe(digest, job.now());
    }
    return job.detector.Evaluate(job.now());
  };
  EXPECT_THAT(tell(false), IsEmpty());
  job.Pass(seconds(8));
  for (uint32_t rank : {0U, 1U, 2U, 5U}) job.Fly(rank, kAll, kReduce, 5, 6);
  const auto before = tell(false);
  ASSERT_THAT(before, SizeIs(1));
  EXPECT_THAT(before[0].ranks, ElementsAre(Rank{3})) << "4 and 5 said where they are to no avail";
  const auto after = tell(true);
  ASSERT_THAT(after, SizeIs(2));
  EXPECT_THAT(after[1].ranks, ElementsAre(Rank{4}));
}

TEST(HangTest, WhoMovedAShortWhileAgoDoesNotHang) {
  Told job = InOperation({0, 1, 2, 4, 5}, 8);
  Digest digest = job.DigestOf(1);
  digest.completed.push_back({Rank{3}, CommId{kAll}, kReduce, 5});
  job.detector.Observe(digest, job.now());
  EXPECT_THAT(job.Evaluate(), IsEmpty());
  job.Pass(seconds(5));
  EXPECT_THAT(job.Evaluate(), SizeIs(1));
}

TEST(HangTest, APipelineWaitsForItsStalledStage) {
  Told job(4);
  job.AddComm(kAll, Role::kPipeline, {0, 1, 2, 3});
  job.Evaluate();
  job.Pass(seconds(8));
  for (uint32_t rank : {2U, 3U}) {
    job.Fly(rank, kAll, Func::kRecv, 0, 6, 1024,
            PeerEdge{Rank{rank - 1}, Direction::kRecv, EdgeState::kRecvWait, 0});
  }
  job.Fly(0, kAll, Func::kRecv, 0, 6, 1024,
          PeerEdge{Rank{1}, Direction::kRecv, EdgeState::kRecvWait, 0});
  const auto verdicts = job.Evaluate();
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_THAT(verdicts[0].ranks, ElementsAre(Rank{1}));
}

TEST(HangTest, ClocksMayDriftForADay) {
  Told job(4);
  job.AddComm(kAll, Role::kData, {0, 1, 2, 3});
  Detector detector(Incarnation{1}, 4);
  Told told(4);
  auto digest_at = [&](uint32_t node, double at_s, double rate) {
    Digest digest = told.DigestOf(node);
    digest.communicators = {{CommId{kAll}, Role::kData, {Rank{0}, Rank{1}, Rank{2}, Rank{3}}}};
    digest.taken_ns = static_cast<uint64_t>((at_s + 1000) * rate * 1e9);
    return digest;
  };
  auto at = [](double at_s) {
    return Clock::TimePoint(std::chrono::nanoseconds(static_cast<int64_t>((at_s + 5000) * 1e9)));
  };
  constexpr double kDay = 86'400;
  for (double at_s = 0; at_s < kDay; at_s += 1) {
    detector.Observe(digest_at(0, at_s, 1 + 200e-6), at(at_s));
    detector.Observe(digest_at(1, at_s, 1 - 200e-6), at(at_s));
  }
  Digest last = digest_at(0, kDay, 1 + 200e-6);
  for (uint32_t rank : {0U, 1U}) {
    last.in_flight.push_back(
        {Rank{rank}, CommId{kAll}, kReduce, 7, FlightState::kStarted, 5, 1024, 6'000'000'000, {}});
  }
  Digest other = digest_at(1, kDay, 1 - 200e-6);
  other.in_flight = {last.in_flight[0]};
  other.in_flight[0].rank = Rank{2};
  detector.Observe(last, at(kDay));
  detector.Observe(other, at(kDay));
  const auto verdicts = detector.Evaluate(at(kDay));
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_THAT(verdicts[0].ranks, ElementsAre(Rank{3}));
}

}  // namespace
}  // namespace holdfast::detect
