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

/// From when on a wait is a verdict: for a rank that may yet come, and where nothing can move.
constexpr double kLong = 61;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// Six ranks in one communicator, the given ones in its operation 5 for `age_s`.
Told InOperation(const std::vector<uint32_t>& ranks, double age_s) {
  Told job(6);
  job.AddComm(kAll, Role::kData, {0, 1, 2, 3, 4, 5});
  job.Complete(kAll, 4);
  job.Evaluate();
  job.Evaluate();  // now all are known
  job.Pass(seconds(70));
  job.Evaluate();
  for (uint32_t rank : ranks) job.Fly(rank, kAll, kReduce, 5, age_s);
  return job;
}

TEST(HangTest, TheRankThatDoesNotComeIsBlamed) {
  Told job = InOperation({0, 1, 2, 4, 5}, kLong);
  const auto verdicts = job.Evaluate();
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_EQ(verdicts[0].fault, FaultClass::kComputeHang);
  EXPECT_THAT(verdicts[0].ranks, ElementsAre(Rank{3}));
  EXPECT_THAT(verdicts[0].nodes, ElementsAre("n1"));
  EXPECT_EQ(verdicts[0].action, Action::kRestartWithoutRoot);
  EXPECT_THAT(verdicts[0].evidence[0], HasSubstr("5 of 6 ranks have been in allreduce 5"));
  EXPECT_THAT(verdicts[0].evidence[0], HasSubstr("61.0 s"));
  EXPECT_EQ(verdicts[0].lasting_ns, 61'000'000'000U);
  EXPECT_THAT(job.detector.suspicions(), IsEmpty());
}

TEST(HangTest, NothingBeforeFiveSeconds) {
  Told job = InOperation({0, 1, 2, 4, 5}, 4.9);
  EXPECT_THAT(job.Evaluate(), IsEmpty());
  EXPECT_THAT(job.detector.suspicions(), IsEmpty());
}

TEST(HangTest, WhatMayBeAPauseIsSuspectedAndNothingIsDone) {
  for (const double age_s : {5.1, 30.0, 59.0}) {
    Told job = InOperation({0, 1, 2, 4, 5}, age_s);
    EXPECT_THAT(job.Evaluate(), IsEmpty());
    ASSERT_THAT(job.detector.suspicions(), SizeIs(1));
    const Verdict& suspicion = job.detector.suspicions()[0];
    EXPECT_EQ(suspicion.fault, FaultClass::kComputeHang);
    EXPECT_THAT(suspicion.ranks, ElementsAre(Rank{3}));
    EXPECT_EQ(suspicion.action, Action::kNone);
    EXPECT_THAT(suspicion.evidence.back(), HasSubstr("a fault if it lasts for 60.0 s"));
  }
}

TEST(HangTest, WhoIsStoppedIsFoundAsSoonAsItHasLasted) {
  Told job = InOperation({0, 1, 2, 4, 5}, 5.5);
  job.state(3).process_state = 'T';
  EXPECT_THAT(job.Evaluate(), IsEmpty()) << "just now";
  EXPECT_THAT(job.detector.suspicions(), SizeIs(1));
  job.Pass(seconds(5));
  const auto verdicts = job.Evaluate();
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_EQ(verdicts[0].confidence, 1);
  EXPECT_EQ(verdicts[0].action, Action::kRestartWithoutRoot);
}

TEST(HangTest, ADebuggerIsNoReasonToRestart) {
  Told job = InOperation({0, 1, 2, 4, 5}, kLong);
  job.state(3).process_state = 't';
  const auto verdicts = job.Evaluate();
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_EQ(verdicts[0].action, Action::kAlert);
  EXPECT_THAT(verdicts[0].evidence[1], HasSubstr("a debugger holds it"));
}

TEST(HangTest, TheFirstOperationIsGivenTheTimeThatTheOthersNeeded) {
  // Compiling took the others two minutes.
  Told job(6);
  job.AddComm(kAll, Role::kData, {0, 1, 2, 3, 4, 5});
  job.Evaluate();
  job.Pass(seconds(120 + 100));
  for (uint32_t rank : {0U, 1U, 2U, 4U, 5U}) job.Fly(rank, kAll, kReduce, 0, 100);
  EXPECT_THAT(job.Evaluate(), IsEmpty());
  job.Land();
  job.Pass(seconds(100));
  for (uint32_t rank : {0U, 1U, 2U, 4U, 5U}) job.Fly(rank, kAll, kReduce, 0, 200);
  EXPECT_THAT(job.Evaluate(), SizeIs(1));
}

TEST(HangTest, WhoseStepsAreLongIsGivenOneAndAHalf) {
  for (const double age_s : {100.0, 140.0}) {
    Told job = InOperation({0, 1, 2, 4, 5}, age_s);
    job.state(3).steps_done = {{99, 90'000'000'000}};
    job.Pass(seconds(80));
    EXPECT_EQ(job.Evaluate().size(), age_s < 135 ? 0U : 1U);
  }
}

TEST(HangTest, APauseThatEndedIsWaitedForAgain) {
  Told job(6);
  job.AddComm(kAll, Role::kData, {0, 1, 2, 3, 4, 5});
  job.Complete(kAll, 5);
  auto stand_still = [&](uint64_t seq, double age_s) {
    job.Pass(std::chrono::milliseconds(static_cast<int64_t>(age_s * 1000)));
    job.Land();
    for (uint32_t rank : {0U, 1U, 2U, 4U, 5U}) job.Fly(rank, kAll, kReduce, seq, age_s);
    return job.Evaluate();
  };
  job.Evaluate();
  EXPECT_THAT(stand_still(5, 100), SizeIs(1));
  job.Land();
  for (int i = 0; i < 5; ++i) {  // it went on
    job.Pass(seconds(1));
    job.Evaluate();
  }
  EXPECT_GE(job.detector.longest_pause(), seconds(100));
  EXPECT_THAT(stand_still(6, 110), IsEmpty());
  EXPECT_THAT(stand_still(6, 130), SizeIs(1));
}

TEST(HangTest, AWordThatIsLostEndsNoPause) {
  Told job = InOperation({0, 1, 2, 4, 5}, 50);
  job.Evaluate();
  job.Land();  // for one look
  job.Evaluate();
  job.Pass(seconds(11));
  for (uint32_t rank : {0U, 1U, 2U, 4U, 5U}) job.Fly(rank, kAll, kReduce, 5, kLong);
  job.Evaluate();
  EXPECT_EQ(job.detector.longest_pause(), seconds(0));
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
    job.Evaluate();
    ASSERT_THAT(job.detector.suspicions(), SizeIs(1));
    EXPECT_THAT(job.detector.suspicions()[0].evidence[1], HasSubstr(c.words));
  }
  Told job = InOperation({0, 1, 2, 4, 5}, kLong);
  job.Fly(3, kAll, kReduce, 5, kLong, 1024, {}, FlightState::kEnqueued);
  const auto verdicts = job.Evaluate();
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_THAT(verdicts[0].evidence[1], HasSubstr("its GPU is stuck"));
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
  for (uint32_t rank : {0U, 1U, 4U, 5U}) job.Fly(rank, kAll, kReduce, 5, kLong);
  const auto verdicts = job.Evaluate();
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_EQ(verdicts[0].fault, FaultClass::kDead);
  EXPECT_THAT(verdicts[0].ranks, ElementsAre(Rank{2}, Rank{3})) << "all of the node";
  EXPECT_THAT(verdicts[0].evidence[1], HasSubstr("has been silent for"));
}

TEST(HangTest, ANodeThatIsLostInAMarkedPhaseIsFound) {
  Told job = InOperation({}, 0);
  job.state(3).phases = static_cast<uint8_t>(Phase::kCheckpoint);
  job.Evaluate();
  job.silent = 1;
  job.Pass(seconds(70));
  for (uint32_t rank : {0U, 1U, 4U, 5U}) job.Fly(rank, kAll, kReduce, 5, kLong);
  const auto verdicts = job.Evaluate();
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_THAT(verdicts[0].ranks, ElementsAre(Rank{2}, Rank{3}));
  EXPECT_EQ(verdicts[0].fault, FaultClass::kDead);
}

TEST(HangTest, OfASilentNodeTheOthersAreAsked) {
  // Nobody asked; in vain; with success: then only its agent is away.
  struct Case {
    std::set<std::pair<uint32_t, uint32_t>> cut;
    bool asked;
    int silent_s;
    bool found;
  };
  const Case cases[] = {{{}, false, 20, false},
                        {{}, false, 41, true},
                        {{{1, 0}, {1, 2}}, true, 9, false},
                        {{{1, 0}, {1, 2}}, true, 11, true},
                        {{}, true, 50, false},
                        {{}, true, 61, true}};
  for (const Case& c : cases) {
    Told job(6);
    job.AddComm(kAll, Role::kData, {0, 1, 2, 3, 4, 5});
    job.Complete(kAll, 20);
    for (int i = 0; i < 2; ++i) {
      job.Evaluate();
      job.Pass(milliseconds(100));
    }
    if (c.asked) job.AskOthers(c.cut);
    job.silent = 1;
    for (int i = 0; i < c.silent_s; ++i) {
      job.Pass(seconds(1));
      job.Land();
      for (uint32_t rank : {0U, 1U, 4U, 5U}) job.Fly(rank, kAll, kReduce, 20, i + 1);
      EXPECT_EQ(job.Evaluate().empty(), !(c.found && i + 2 >= c.silent_s)) << i;
      if (HasFailure()) break;
    }
  }
}

TEST(HangTest, AReceiverWaitsForItsPeerAndIsNotOutsideOfCommunication) {
  // A pipeline of four: stage 2 hangs. 3 waits to receive from it; 1 has sent and waits for what
  // comes back; 0 waits for 1. No connection is known, only whom each operation is with.
  Told job(4);
  job.AddComm(kAll, Role::kPipeline, {0, 1, 2, 3});
  job.AddComm(2, Role::kData, {0, 1, 2, 3});
  job.Evaluate();
  job.Pass(seconds(70));
  job.Evaluate();
  job.Pass(milliseconds(100));
  auto receive = [&](uint32_t rank, uint32_t from) {
    job.Fly(rank, kAll, Func::kRecv, 7, kLong, 1024,
            PeerEdge{Rank{from}, Direction::kRecv, EdgeState::kUnknown, 0});
  };
  receive(3, 2);
  receive(1, 2);
  receive(0, 1);
  const auto verdicts = job.Evaluate();
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_EQ(verdicts[0].fault, FaultClass::kComputeHang);
  EXPECT_THAT(verdicts[0].ranks, ElementsAre(Rank{2}));
  EXPECT_THAT(verdicts[0].evidence[0], HasSubstr("1 of 2 ranks"));
}

TEST(HangTest, WhoIsInATransferWhosePeerIsNotKnownIsNotBlamed) {
  Told job(4);
  job.AddComm(kAll, Role::kPipeline, {0, 1, 2, 3});
  job.AddComm(2, Role::kData, {0, 1, 2, 3});
  job.Evaluate();
  job.Pass(seconds(70));
  job.Evaluate();
  job.Pass(milliseconds(100));
  for (uint32_t rank : {0U, 1U, 2U}) job.Fly(rank, 2, kReduce, 5, kLong);
  job.Fly(3, kAll, Func::kRecv, 7, kLong);
  EXPECT_THAT(job.Evaluate(), IsEmpty());
  EXPECT_THAT(job.detector.suspicions(), IsEmpty());
}

TEST(HangTest, ASendThatNobodyTakesYetMakesNoCircle) {
  // Rank 0 hangs in its kernel; its send is under way, and rank 1, which would take it, waits for
  // rank 0 in their all-reduce.
  Told job(2);
  job.AddComm(1, Role::kPipeline, {0, 1});
  job.AddComm(2, Role::kData, {0, 1});
  job.Evaluate();
  job.Pass(seconds(70));
  job.Evaluate();
  job.Pass(milliseconds(100));
  job.Fly(0, 1, Func::kSend, 7, kLong, 1024,
          PeerEdge{Rank{1}, Direction::kSend, EdgeState::kUnknown, 0});
  job.Fly(1, 2, kReduce, 5, kLong);
  const auto verdicts = job.Evaluate();
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_EQ(verdicts[0].fault, FaultClass::kComputeHang);
  EXPECT_THAT(verdicts[0].ranks, ElementsAre(Rank{0}));
}

TEST(HangTest, ATransferThatBothHaveStartedNamesItsConnection) {
  Told job(4);
  job.AddComm(kAll, Role::kPipeline, {0, 1, 2, 3});
  job.Evaluate();
  job.Pass(seconds(70));
  job.Evaluate();
  job.Pass(milliseconds(100));
  job.Fly(1, kAll, Func::kSend, 9, kLong, 1024,
          PeerEdge{Rank{2}, Direction::kSend, EdgeState::kUnknown, 0});
  job.Fly(2, kAll, Func::kRecv, 4, kLong, 1024,
          PeerEdge{Rank{1}, Direction::kRecv, EdgeState::kUnknown, 0});
  const auto verdicts = job.Evaluate();
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_EQ(verdicts[0].fault, FaultClass::kCommHang);
  EXPECT_EQ(verdicts[0].edge, (Edge{Rank{1}, Rank{2}}));
}

TEST(HangTest, AStartedOperationIsKeptHoweverManyAreEnqueued) {
  // The CPU of rank 3 runs ahead by sixty operations and its GPU waits with the others: for 4.
  Told job = InOperation({0, 1, 2, 5}, kLong);
  for (uint64_t seq = 6; seq < 66; ++seq) {
    job.Fly(3, kAll, kReduce, seq, kLong - 0.01 * static_cast<double>(seq), 1024, {},
            FlightState::kEnqueued);
  }
  job.Fly(3, kAll, kReduce, 5, kLong);
  const auto verdicts = job.Evaluate();
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_THAT(verdicts[0].ranks, ElementsAre(Rank{4}));
}

TEST(HangTest, AStoppedRankIsNamedWhateverElseLooksFaulty) {
  Told job = InOperation({0}, kLong);
  job.state(3).process_state = 'T';
  job.Evaluate();
  job.Pass(seconds(6));
  const auto verdicts = job.Evaluate();
  ASSERT_FALSE(verdicts.empty());
  EXPECT_THAT(verdicts[0].ranks, ElementsAre(Rank{3}));
  EXPECT_EQ(verdicts.back().fault, FaultClass::kFabric);
}

TEST(HangTest, BlameFollowsTheWaitingToItsEnd) {
  // 0, 1 | 2, 3 in pairs; 1 and 3 also together. 3 does not come to its pair: 2 waits for it, and
  // so do 1, which is in their common operation, and 0, whom 1 does not come to.
  Told job(4);
  job.AddComm(1, Role::kTensor, {0, 1});
  job.AddComm(2, Role::kTensor, {2, 3});
  job.AddComm(3, Role::kData, {1, 3});
  job.Evaluate();
  job.Pass(seconds(70));
  job.Fly(0, 1, kReduce, 5, kLong);
  job.Fly(1, 3, kReduce, 5, kLong);
  job.Fly(2, 2, kReduce, 5, kLong);
  const auto verdicts = job.Evaluate();
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_THAT(verdicts[0].ranks, ElementsAre(Rank{3}));
}

TEST(HangTest, TwoRootsAreTwoVerdicts) {
  Told job = InOperation({0, 1, 2, 3}, kLong);
  const auto verdicts = job.Evaluate();
  ASSERT_THAT(verdicts, SizeIs(2));
  EXPECT_THAT(verdicts[0].ranks, ElementsAre(Rank{4}));
  EXPECT_THAT(verdicts[1].ranks, ElementsAre(Rank{5}));
}

TEST(HangTest, MoreNodesThanFailByThemselvesAreAFabricFault) {
  Told job = InOperation({0}, kLong);
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
  job.Pass(seconds(70));
  auto edge = [](uint32_t peer, Direction direction, EdgeState state, uint64_t steps) {
    return PeerEdge{Rank{peer}, direction, state, steps};
  };
  job.Fly(0, kAll, kReduce, 5, kLong, 1024, edge(1, Direction::kSend, EdgeState::kSendPeerWait, 9));
  job.Fly(1, kAll, kReduce, 5, kLong, 1024, edge(2, Direction::kSend, EdgeState::kSendWait, 7));
  job.Fly(2, kAll, kReduce, 5, kLong, 1024, edge(1, Direction::kRecv, EdgeState::kRecvWait, 7));
  job.Fly(3, kAll, kReduce, 5, kLong, 1024, edge(2, Direction::kRecv, EdgeState::kRecvWait, 8));
  const auto verdicts = job.Evaluate();
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_EQ(verdicts[0].fault, FaultClass::kCommHang);
  EXPECT_EQ(verdicts[0].edge, (Edge{Rank{1}, Rank{2}}));
  EXPECT_THAT(verdicts[0].nodes, ElementsAre("n0", "n1"));
}

/// Seconds after which every node has told who answers it.
constexpr uint32_t kAllHaveAnswered = 61;

/// A ring over four nodes of two ranks: each rank waits for the one before it, whoever is cut off.
Told StuckRing(uint32_t for_s = 12) {
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
  Told job = StuckRing(6);
  job.AskOthers({{1, 2}});
  job.Evaluate();
  job.Pass(std::chrono::milliseconds(100));
  EXPECT_TRUE(job.Evaluate().empty());
  EXPECT_TRUE(job.detector.suspicions().empty());
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
  Told job = InOperation({0, 1, 2, 3, 4, 5}, kLong);
  job.state(3).process_state = 'T';
  job.Evaluate();
  job.Pass(seconds(6));
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
  job.Pass(seconds(70));
  for (uint32_t rank = 0; rank < 4; ++rank) {
    std::optional<PeerEdge> edge;
    if (rank == 1) edge = PeerEdge{Rank{2}, Direction::kSend, EdgeState::kSendPeerWait, 3};
    job.Fly(rank, kAll, kReduce, 5, kLong, 1024, edge);
  }
  const auto verdicts = job.Evaluate();
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_THAT(verdicts[0].ranks, ElementsAre(Rank{2}));
}

TEST(HangTest, DifferentSizesAreASoftwareMismatchAndEvictNobody) {
  Told job = InOperation({0, 1, 2, 3, 4}, kLong);
  job.Fly(5, kAll, kReduce, 5, kLong, 2048);
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
  job.Pass(seconds(70));
  for (uint32_t rank : {0U, 1U, 2U}) job.Fly(rank, kAll, Func::kAllToAll, 5, kLong, 1024 + rank);
  const auto verdicts = job.Evaluate();
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_EQ(verdicts[0].fault, FaultClass::kComputeHang);
}

TEST(HangTest, DifferentOrderInOneCommunicatorIsASoftwareMismatch) {
  Told job(4);
  job.AddComm(kAll, Role::kData, {0, 1, 2, 3});
  job.Evaluate();
  job.Pass(seconds(70));
  for (uint32_t rank : {0U, 1U, 2U}) job.Fly(rank, kAll, kReduce, 5, kLong);
  job.Fly(3, kAll, Func::kAllGather, 5, kLong);
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
  job.Pass(seconds(70));
  job.Fly(0, 1, kReduce, 5, kLong);
  job.Fly(1, 2, kReduce, 5, kLong);
  job.Fly(2, 3, kReduce, 5, kLong);
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
  job.Pass(seconds(70));
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
  job.Pass(seconds(70));
  for (uint32_t rank : {0U, 1U, 2U, 5U}) job.Fly(rank, kAll, kReduce, 5, kLong);
  const auto before = tell(false);
  ASSERT_THAT(before, SizeIs(1));
  EXPECT_THAT(before[0].ranks, ElementsAre(Rank{3})) << "4 and 5 said where they are to no avail";
  const auto after = tell(true);
  ASSERT_THAT(after, SizeIs(2));
  EXPECT_THAT(after[1].ranks, ElementsAre(Rank{4}));
}

TEST(HangTest, WhoMovedAShortWhileAgoDoesNotHang) {
  Told job = InOperation({0, 1, 2, 4, 5}, 200);
  Digest digest = job.DigestOf(1);
  digest.completed.push_back({Rank{3}, CommId{kAll}, kReduce, 5});
  job.detector.Observe(digest, job.now());
  EXPECT_THAT(job.Evaluate(), IsEmpty());
  job.Pass(seconds(104));  // one and a half of the pause before that
  EXPECT_THAT(job.Evaluate(), SizeIs(1));
}

TEST(HangTest, APipelineWaitsForItsStalledStage) {
  Told job(4);
  job.AddComm(kAll, Role::kPipeline, {0, 1, 2, 3});
  job.Evaluate();
  job.Pass(seconds(70));
  for (uint32_t rank : {2U, 3U}) {
    job.Fly(rank, kAll, Func::kRecv, 0, kLong, 1024,
            PeerEdge{Rank{rank - 1}, Direction::kRecv, EdgeState::kRecvWait, 0});
  }
  job.Fly(0, kAll, Func::kRecv, 0, kLong, 1024,
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
    digest.completed = {{Rank{2 * node}, CommId{kAll}, kReduce, 5}};
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
        {Rank{rank}, CommId{kAll}, kReduce, 7, FlightState::kStarted, 5, 1024, 61'000'000'000, {}});
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

TEST(HangTest, ACircleIsNotSuspectedBeforeAllOfItIsOld) {
  for (const double age_s : {1.0, 4.9, 8.0}) {
    Told job(4);
    job.AddComm(kAll, Role::kPipeline, {0, 1, 2, 3});
    job.Evaluate();
    job.Pass(seconds(70));
    job.Fly(2, kAll, Func::kRecv, 0, 8, 1024,
            PeerEdge{Rank{0}, Direction::kRecv, EdgeState::kRecvWait, 0});
    job.Fly(0, kAll, Func::kRecv, 0, age_s, 1024,
            PeerEdge{Rank{2}, Direction::kRecv, EdgeState::kRecvWait, 0});
    EXPECT_THAT(job.Evaluate(), IsEmpty());
    EXPECT_THAT(job.detector.suspicions(), SizeIs(age_s < 5 ? 0 : 1)) << age_s;
  }
}

}  // namespace
}  // namespace holdfast::detect
