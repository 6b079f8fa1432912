// Hangs of a hand-written job: each class of fault, and states that must not be taken for a fault.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/coordinator/detect/detect_test_util.h"

namespace holdfast::detect {
namespace {
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

/// Age in seconds from which a wait is a verdict in all cases.
constexpr double kLongS = 61;
using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(HangTest, TheRankThatDoesNotJoinIsBlamed) {
  FakeJob job = InOperation({0, 1, 2, 4, 5}, kLongS);
  const auto verdicts = job.Evaluate();
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_EQ(verdicts[0].fault, FaultClass::kComputeHang);
  EXPECT_THAT(verdicts[0].ranks, ElementsAre(Rank{3}));
  EXPECT_THAT(verdicts[0].nodes, ElementsAre("n1"));
  EXPECT_EQ(verdicts[0].action, Action::kRestartWithoutRoot);
  EXPECT_THAT(verdicts[0].evidence[0], HasSubstr("5 of 6 ranks have been in AllReduce 5"));
  EXPECT_THAT(verdicts[0].evidence[0], HasSubstr("61.0 s"));
  EXPECT_EQ(verdicts[0].lasting_ns, 61'000'000'000U);
  EXPECT_THAT(job.detector.suspicions(), IsEmpty());
}

TEST(HangTest, NothingIsReportedBeforeFiveSeconds) {
  FakeJob job = InOperation({0, 1, 2, 4, 5}, 4.9);
  EXPECT_THAT(job.Evaluate(), IsEmpty());
  EXPECT_THAT(job.detector.suspicions(), IsEmpty());
}

TEST(HangTest, APossiblePauseIsASuspicionWithoutAction) {
  for (const double age_s : {5.1, 30.0, 59.0}) {
    FakeJob job = InOperation({0, 1, 2, 4, 5}, age_s);
    EXPECT_THAT(job.Evaluate(), IsEmpty());
    ASSERT_THAT(job.detector.suspicions(), SizeIs(1));
    const Verdict& suspicion = job.detector.suspicions()[0];
    EXPECT_EQ(suspicion.fault, FaultClass::kComputeHang);
    EXPECT_THAT(suspicion.ranks, ElementsAre(Rank{3}));
    EXPECT_EQ(suspicion.action, Action::kNone);
    EXPECT_THAT(suspicion.evidence.back(), HasSubstr("becomes a verdict after 60.0 s"));
  }
}

/// On a machine with too many processes, ranks are late for many seconds.
TEST(HangTest, ARankThatWaitsForAProcessorIsNotSuspectedUntilPatienceEnds) {
  for (const uint32_t percent : {0, 49, 50, 300}) {
    FakeJob late = InOperation({0, 1, 2, 4, 5}, 30);
    late.state(3).processor_wait_percent = percent;
    EXPECT_THAT(late.Evaluate(), IsEmpty());
    EXPECT_THAT(late.detector.suspicions(), SizeIs(percent < 50 ? 1 : 0)) << percent;
  }
  FakeJob hung = InOperation({0, 1, 2, 4, 5}, kLongS);
  hung.state(3).processor_wait_percent = 93;
  const auto verdicts = hung.Evaluate();
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_THAT(verdicts[0].evidence[1], HasSubstr("wait for a processor, together for 93 %"));
}

/// Such a rank neither sends nor notices that the operation has ended.
TEST(HangTest, AnOperationOfARankThatWaitsForAProcessorIsNotSuspectedUntilPatienceEnds) {
  for (const uint32_t percent : {0, 50}) {
    FakeJob late = InOperation({0, 1, 2, 3, 4, 5}, 30);
    late.state(3).processor_wait_percent = percent;
    EXPECT_THAT(late.Evaluate(), IsEmpty());
    EXPECT_THAT(late.detector.suspicions(), SizeIs(percent < 50 ? 1 : 0)) << percent;
  }
  FakeJob hung = InOperation({0, 1, 2, 3, 4, 5}, kLongS);
  hung.state(3).processor_wait_percent = 50;
  EXPECT_THAT(hung.Evaluate(), SizeIs(1));
}

TEST(HangTest, AStoppedRankIsAVerdictOnceTheStopHasLasted) {
  FakeJob job = InOperation({0, 1, 2, 4, 5}, 5.5);
  job.state(3).process_state = 'T';
  EXPECT_THAT(job.Evaluate(), IsEmpty()) << "it has only just stopped";
  EXPECT_THAT(job.detector.suspicions(), SizeIs(1));
  job.Advance(seconds(5));
  const auto verdicts = job.Evaluate();
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_EQ(verdicts[0].confidence, 1);
  EXPECT_EQ(verdicts[0].action, Action::kRestartWithoutRoot);
}

TEST(HangTest, ARankInADebuggerIsOnlyAnAlert) {
  FakeJob job = InOperation({0, 1, 2, 4, 5}, kLongS);
  job.state(3).process_state = 't';
  const auto verdicts = job.Evaluate();
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_EQ(verdicts[0].action, Action::kAlert);
  EXPECT_THAT(verdicts[0].evidence[1], HasSubstr("held by a debugger"));
}

TEST(HangTest, TheEvidenceDescribesTheStateOfTheRank) {
  struct Case {
    char process_state;
    const char* words;
  };
  for (const Case& c : {Case{'T', "(stopped)"}, Case{'D', "(waiting for I/O in the kernel)"},
                        Case{'S', "(sleeping)"}, Case{'R', "(running)"}}) {
    FakeJob job = InOperation({0, 1, 2, 4, 5}, 6);
    job.state(3).process_state = c.process_state;
    job.Evaluate();
    ASSERT_THAT(job.detector.suspicions(), SizeIs(1));
    EXPECT_THAT(job.detector.suspicions()[0].evidence[1], HasSubstr(c.words));
  }
  FakeJob job = InOperation({0, 1, 2, 4, 5}, kLongS);
  job.AddFlight(3, kAll, kReduce, 5, kLongS, 1024, {}, false);
  const auto verdicts = job.Evaluate();
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_THAT(verdicts[0].evidence[1], HasSubstr("its GPU has not started it"));
}

TEST(HangTest, ADeadProcessIsReportedAtOnceAndIsTheOnlyRoot) {
  FakeJob job = InOperation({0, 1, 2, 4, 5}, 0.1);
  job.state(3).alive = false;
  auto verdicts = job.Evaluate();
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_EQ(verdicts[0].fault, FaultClass::kDead);
  EXPECT_THAT(verdicts[0].ranks, ElementsAre(Rank{3}));
  job.ClearFlights();
  for (uint32_t rank : {0U, 1U, 2U, 4U, 5U}) job.AddFlight(rank, kAll, kReduce, 5, 60);
  EXPECT_THAT(job.Evaluate(), SizeIs(1));
}

TEST(HangTest, ARankThatFinishedIsNotDead) {
  FakeJob job = InOperation({}, 0);
  job.state(3).alive = false;
  job.state(3).ended_orderly = true;
  EXPECT_THAT(job.Evaluate(), IsEmpty());
}

TEST(HangTest, ASilentNodesRankIsDeadOnlyWhenOthersWaitForIt) {
  FakeJob job = InOperation({}, 0);
  job.silent_node = 1;
  job.Advance(seconds(60));
  EXPECT_THAT(job.Evaluate(), IsEmpty());
  for (uint32_t rank : {0U, 1U, 4U, 5U}) job.AddFlight(rank, kAll, kReduce, 5, kLongS);
  const auto verdicts = job.Evaluate();
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_EQ(verdicts[0].fault, FaultClass::kDead);
  EXPECT_THAT(verdicts[0].ranks, ElementsAre(Rank{2}, Rank{3})) << "all ranks of the node";
  EXPECT_THAT(verdicts[0].evidence[1], HasSubstr("has been silent for"));
}

TEST(HangTest, ANodeLostAsItLeavesAnOperationIsFound) {
  FakeJob job = InOperation({0, 1, 2, 3, 4, 5}, 2);
  job.Evaluate();
  job.ClearFlights();  // all ranks have left it in the last report of node 1
  job.Evaluate();
  job.silent_node = 1;
  job.Advance(seconds(70));
  for (uint32_t rank : {0U, 1U, 4U, 5U}) job.AddFlight(rank, kAll, kReduce, 6, kLongS);
  const auto verdicts = job.Evaluate();
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_THAT(verdicts[0].ranks, ElementsAre(Rank{2}, Rank{3}));
}

TEST(HangTest, ANodeLostInAMarkedPhaseIsFound) {
  FakeJob job = InOperation({}, 0);
  job.state(3).phases = static_cast<uint8_t>(Phase::kCheckpoint);
  job.Evaluate();
  job.silent_node = 1;
  job.Advance(seconds(70));
  for (uint32_t rank : {0U, 1U, 4U, 5U}) job.AddFlight(rank, kAll, kReduce, 5, kLongS);
  const auto verdicts = job.Evaluate();
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_THAT(verdicts[0].ranks, ElementsAre(Rank{2}, Rank{3}));
  EXPECT_EQ(verdicts[0].fault, FaultClass::kDead);
}

TEST(HangTest, PatienceForASilentNodeDependsOnProbes) {
  // Not probed; probed without an answer; answered, so that only its agent is silent.
  struct Case {
    std::set<std::pair<uint32_t, uint32_t>> cut;
    bool probed;
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
    FakeJob job(6);
    job.AddComm(kAll, CommunicatorRole::kData, {0, 1, 2, 3, 4, 5});
    job.Complete(kAll, 20);
    for (int i = 0; i < 2; ++i) {
      job.Evaluate();
      job.Advance(milliseconds(100));
    }
    if (c.probed) job.ProbeOthers(c.cut);
    job.silent_node = 1;
    for (int i = 0; i < c.silent_s; ++i) {
      job.Advance(seconds(1));
      job.ClearFlights();
      for (uint32_t rank : {0U, 1U, 4U, 5U}) job.AddFlight(rank, kAll, kReduce, 20, i + 1);
      EXPECT_EQ(job.Evaluate().empty(), !(c.found && i + 2 >= c.silent_s)) << i;
      if (HasFailure()) break;
    }
  }
}

TEST(HangTest, AReceiverWaitsForItsPeerAndIsNotOutsideCommunication) {
  // A pipeline of four: stage 2 hangs. Stage 3 waits to receive from it. Stage 1 has sent and waits
  // for the gradients. Stage 0 waits for stage 1. Only the peers are known, no connection states.
  FakeJob job(4);
  job.AddComm(kAll, CommunicatorRole::kPipeline, {0, 1, 2, 3});
  job.AddComm(2, CommunicatorRole::kData, {0, 1, 2, 3});
  job.Evaluate();
  job.Advance(seconds(70));
  job.Evaluate();
  job.Advance(milliseconds(100));
  auto receive = [&](uint32_t rank, uint32_t from) {
    job.AddFlight(rank, kAll, CollectiveKind::kReceive, 7, kLongS, 1024,
                  PeerEdge{Rank{from}, Direction::kReceive, EdgeState::kIdle, 0});
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

TEST(HangTest, ARankInATransferWithAnUnknownPeerIsNotBlamed) {
  FakeJob job(4);
  job.AddComm(kAll, CommunicatorRole::kPipeline, {0, 1, 2, 3});
  job.AddComm(2, CommunicatorRole::kData, {0, 1, 2, 3});
  job.Evaluate();
  job.Advance(seconds(70));
  job.Evaluate();
  job.Advance(milliseconds(100));
  for (uint32_t rank : {0U, 1U, 2U}) job.AddFlight(rank, 2, kReduce, 5, kLongS);
  job.AddFlight(3, kAll, CollectiveKind::kReceive, 7, kLongS);
  EXPECT_THAT(job.Evaluate(), IsEmpty());
  EXPECT_THAT(job.detector.suspicions(), IsEmpty());
}

TEST(HangTest, ASendWithoutAReceiverMakesNoCycle) {
  // Rank 0 hangs in its kernel while its send is in flight. Rank 1, the receiver, waits for rank 0
  // in their all-reduce.
  FakeJob job(2);
  job.AddComm(1, CommunicatorRole::kPipeline, {0, 1});
  job.AddComm(2, CommunicatorRole::kData, {0, 1});
  job.Evaluate();
  job.Advance(seconds(70));
  job.Evaluate();
  job.Advance(milliseconds(100));
  job.AddFlight(0, 1, CollectiveKind::kSend, 7, kLongS, 1024,
                PeerEdge{Rank{1}, Direction::kSend, EdgeState::kIdle, 0});
  job.AddFlight(1, 2, kReduce, 5, kLongS);
  const auto verdicts = job.Evaluate();
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_EQ(verdicts[0].fault, FaultClass::kComputeHang);
  EXPECT_THAT(verdicts[0].ranks, ElementsAre(Rank{0}));
}

TEST(HangTest, ATransferThatBothRanksStartedNamesItsConnection) {
  FakeJob job(4);
  job.AddComm(kAll, CommunicatorRole::kPipeline, {0, 1, 2, 3});
  job.Evaluate();
  job.Advance(seconds(70));
  job.Evaluate();
  job.Advance(milliseconds(100));
  job.AddFlight(1, kAll, CollectiveKind::kSend, 9, kLongS, 1024,
                PeerEdge{Rank{2}, Direction::kSend, EdgeState::kIdle, 0});
  job.AddFlight(2, kAll, CollectiveKind::kReceive, 4, kLongS, 1024,
                PeerEdge{Rank{1}, Direction::kReceive, EdgeState::kIdle, 0});
  const auto verdicts = job.Evaluate();
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_EQ(verdicts[0].fault, FaultClass::kCommHang);
  EXPECT_EQ(verdicts[0].edge, (Edge{Rank{1}, Rank{2}}));
}

TEST(HangTest, AStartedOperationIsKeptAlongsideManyEnqueuedOnes) {
  // The CPU of rank 3 is sixty operations ahead. Its GPU waits for rank 4, as the other ranks do.
  FakeJob job = InOperation({0, 1, 2, 5}, kLongS);
  for (uint64_t seq = 6; seq < 66; ++seq) {
    job.AddFlight(3, kAll, kReduce, seq, kLongS - 0.01 * static_cast<double>(seq), 1024, {}, false);
  }
  job.AddFlight(3, kAll, kReduce, 5, kLongS);
  const auto verdicts = job.Evaluate();
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_THAT(verdicts[0].ranks, ElementsAre(Rank{4}));
}

TEST(HangTest, AStoppedRankIsNamedAlongsideAFabricVerdict) {
  FakeJob job = InOperation({0}, kLongS);
  job.state(3).process_state = 'T';
  job.Evaluate();
  job.Advance(seconds(6));
  const auto verdicts = job.Evaluate();
  ASSERT_FALSE(verdicts.empty());
  EXPECT_THAT(verdicts[0].ranks, ElementsAre(Rank{3}));
  EXPECT_EQ(verdicts.back().fault, FaultClass::kFabric);
}

TEST(HangTest, BlameFollowsTheWaitsToTheirRoot) {
  // Ranks 0 and 1, 2 and 3, and 1 and 3 form pairs. Rank 3 does not join its pair, so rank 2 waits.
  // Rank 1 waits for rank 3 in their operation, and rank 0 waits for rank 1.
  FakeJob job(4);
  job.AddComm(1, CommunicatorRole::kTensor, {0, 1});
  job.AddComm(2, CommunicatorRole::kTensor, {2, 3});
  job.AddComm(3, CommunicatorRole::kData, {1, 3});
  job.Evaluate();
  job.Advance(seconds(70));
  job.AddFlight(0, 1, kReduce, 5, kLongS);
  job.AddFlight(1, 3, kReduce, 5, kLongS);
  job.AddFlight(2, 2, kReduce, 5, kLongS);
  const auto verdicts = job.Evaluate();
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_THAT(verdicts[0].ranks, ElementsAre(Rank{3}));
}

TEST(HangTest, TwoRootsAreTwoVerdicts) {
  FakeJob job = InOperation({0, 1, 2, 3}, kLongS);
  const auto verdicts = job.Evaluate();
  ASSERT_THAT(verdicts, SizeIs(2));
  EXPECT_THAT(verdicts[0].ranks, ElementsAre(Rank{4}));
  EXPECT_THAT(verdicts[1].ranks, ElementsAre(Rank{5}));
}

TEST(HangTest, ManyFaultyNodesAtOnceAreAFabricFault) {
  FakeJob job = InOperation({0}, kLongS);
  const auto verdicts = job.Evaluate();
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_EQ(verdicts[0].fault, FaultClass::kFabric);
  EXPECT_EQ(verdicts[0].action, Action::kAlert);
  EXPECT_THAT(verdicts[0].nodes, IsEmpty());
}

TEST(HangTest, ACompleteOperationIsACommunicationHang) {
  FakeJob job(4);
  job.AddComm(kAll, CommunicatorRole::kData, {0, 1, 2, 3});
  job.Evaluate();
  job.Advance(seconds(70));
  auto edge = [](uint32_t peer, Direction direction, EdgeState state, uint64_t steps) {
    return PeerEdge{Rank{peer}, direction, state, steps};
  };
  job.AddFlight(0, kAll, kReduce, 5, kLongS, 1024,
                edge(1, Direction::kSend, EdgeState::kSendPeerWait, 9));
  job.AddFlight(1, kAll, kReduce, 5, kLongS, 1024,
                edge(2, Direction::kSend, EdgeState::kSendWait, 7));
  job.AddFlight(2, kAll, kReduce, 5, kLongS, 1024,
                edge(1, Direction::kReceive, EdgeState::kReceiveWait, 7));
  job.AddFlight(3, kAll, kReduce, 5, kLongS, 1024,
                edge(2, Direction::kReceive, EdgeState::kReceiveWait, 8));
  const auto verdicts = job.Evaluate();
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_EQ(verdicts[0].fault, FaultClass::kCommHang);
  EXPECT_EQ(verdicts[0].edge, (Edge{Rank{1}, Rank{2}}));
  EXPECT_THAT(verdicts[0].nodes, ElementsAre("n0", "n1"));
}

/// The time in seconds after which every node has reported its probe results.
constexpr uint32_t kAllProbesReportedS = 61;

/// The counts of transfers if rank 7 does not send to rank 0.
const std::vector<uint64_t> kCounts = {3, 4, 5, 6, 7, 8, 9, 10};

/// A ring over four nodes of two ranks. Each rank waits for the previous one, whichever node is cut
/// off. The ranks have completed `completed` transfers; none: they do not count them.
FakeJob StuckRing(uint32_t for_s = 12, const std::vector<uint64_t>& completed = {}) {
  FakeJob job(8);
  job.AddComm(kAll, CommunicatorRole::kData, {0, 1, 2, 3, 4, 5, 6, 7});
  for (uint32_t rank = 0; rank < 8; ++rank) {
    PeerEdge edge{Rank{(rank + 7) % 8}, Direction::kReceive, EdgeState::kReceiveWait};
    if (!completed.empty()) edge.completed = completed[rank];
    job.AddFlight(rank, kAll, kReduce, 5, for_s, 1024, edge);
  }
  return job;
}

TEST(HangTest, ACutOffNodeIsBlamedForTheHangOfARing) {
  for (uint32_t node = 0; node < 4; ++node) {
    SCOPED_TRACE(node);
    FakeJob job = StuckRing();
    std::set<std::pair<uint32_t, uint32_t>> cut;
    for (uint32_t other = 0; other < 4; ++other) cut.insert({node, other});
    job.ProbeOthers(cut);
    job.Evaluate();  // the first digests make the nodes known
    job.Advance(std::chrono::milliseconds(100));
    const auto verdicts = job.Evaluate();
    ASSERT_EQ(verdicts.size(), 1U);
    EXPECT_EQ(verdicts[0].fault, FaultClass::kCommHang);
    EXPECT_THAT(verdicts[0].nodes, ElementsAre("n" + std::to_string(node)));
    EXPECT_THAT(verdicts[0].ranks, ElementsAre(Rank{2 * node}, Rank{2 * node + 1}));
    EXPECT_FALSE(verdicts[0].edge.has_value());
    EXPECT_EQ(verdicts[0].action, Action::kRestartWithoutRoot);
  }
}

TEST(HangTest, ACutLinkIsBlamedIfBothEndsReachOthers) {
  FakeJob job = StuckRing(kAllProbesReportedS);
  job.ProbeOthers({{1, 2}});
  job.Evaluate();
  job.Advance(std::chrono::milliseconds(100));
  const auto verdicts = job.Evaluate();
  ASSERT_EQ(verdicts.size(), 1U);
  EXPECT_EQ(verdicts[0].edge, (Edge{Rank{2}, Rank{4}}));
  EXPECT_THAT(verdicts[0].nodes, ElementsAre("n1", "n2"));
  EXPECT_THAT(verdicts[0].evidence.back(), HasSubstr("n1 and n2 do not reach each other"));
}

TEST(HangTest, ACutLinkIsNotReportedBeforeAllProbeResults) {
  FakeJob job = StuckRing(6);
  job.ProbeOthers({{1, 2}});
  job.Evaluate();
  job.Advance(std::chrono::milliseconds(100));
  EXPECT_TRUE(job.Evaluate().empty());
  EXPECT_TRUE(job.detector.suspicions().empty());
}

/// Only the second report of a node shows that its ranks are not moving.
std::vector<Verdict> EvaluateTwice(FakeJob& job) {
  job.Evaluate();
  job.Advance(std::chrono::milliseconds(100));
  return job.Evaluate();
}

TEST(HangTest, ARingOfWaitsNamesTheLeastAdvancedConnection) {
  FakeJob job = StuckRing(kAllProbesReportedS, {16, 17, 18, 11, 12, 13, 14, 15});
  const auto verdicts = EvaluateTwice(job);
  ASSERT_EQ(verdicts.size(), 1U);
  EXPECT_EQ(verdicts[0].edge, (Edge{Rank{2}, Rank{3}}));
  EXPECT_THAT(verdicts[0].evidence.back(), HasSubstr("the other 7 reported connections"));
}

TEST(HangTest, ARingOfWaitsWithoutAnEndNamesNoRank) {
  using Counts = std::vector<uint64_t>;
  // Not counted; none is behind; two are.
  for (const Counts& counts :
       {Counts{}, Counts{9, 9, 9, 9, 9, 9, 9, 9}, Counts{4, 9, 9, 9, 4, 9, 9, 9}}) {
    FakeJob job = StuckRing(kAllProbesReportedS, counts);
    const auto verdicts = EvaluateTwice(job);
    ASSERT_EQ(verdicts.size(), 1U);
    EXPECT_EQ(verdicts[0].fault, FaultClass::kCommHang);
    EXPECT_FALSE(verdicts[0].edge.has_value());
    EXPECT_TRUE(verdicts[0].ranks.empty());
    EXPECT_EQ(verdicts[0].action, Action::kRestartInPlace);
    for (const std::string& line : verdicts[0].evidence) {
      EXPECT_THAT(line, ::testing::Not(HasSubstr("transfer 0")));
    }
  }
}

TEST(HangTest, AGpuThatMayWaitForAnotherGpuOfItsNodeIsNotNamed) {
  for (const bool alone : {false, true}) {
    FakeJob job(8);
    const std::vector<uint32_t> members =
        alone ? std::vector<uint32_t>{0, 2, 4, 6} : std::vector<uint32_t>{0, 1, 2, 3};
    job.AddComm(kAll, CommunicatorRole::kData, members);
    for (const uint32_t rank : members) {
      std::optional<PeerEdge> edge;
      if (rank == members[1]) {
        edge = PeerEdge{Rank{members[2]}, Direction::kSend, EdgeState::kSendGpuWait, 3};
      }
      job.AddFlight(rank, kAll, kReduce, 5, kAllProbesReportedS, 1024, edge);
    }
    const auto verdicts = EvaluateTwice(job);
    ASSERT_EQ(verdicts.size(), 1U);
    EXPECT_EQ(verdicts[0].ranks.size(), alone ? 1U : 0U);
    EXPECT_THAT(verdicts[0].nodes, ElementsAre(alone ? "n1" : "n0"));
    EXPECT_EQ(verdicts[0].action, Action::kRestartWithoutRoot);
  }
}

TEST(HangTest, ConnectionsAreFollowedIfProbesAreInconclusive) {
  using Cuts = std::set<std::pair<uint32_t, uint32_t>>;
  // All links work; no link works; two halves.
  for (const Cuts& cut : {Cuts{}, Cuts{{0, 1}, {0, 2}, {0, 3}, {1, 2}, {1, 3}, {2, 3}},
                          Cuts{{0, 2}, {0, 3}, {1, 2}, {1, 3}}}) {
    FakeJob job = StuckRing(kAllProbesReportedS, kCounts);
    job.ProbeOthers(cut);
    job.Evaluate();
    job.Advance(std::chrono::milliseconds(100));
    const auto verdicts = job.Evaluate();
    ASSERT_EQ(verdicts.size(), 1U);
    EXPECT_EQ(verdicts[0].edge, (Edge{Rank{7}, Rank{0}}));
    EXPECT_EQ(verdicts[0].confidence, 0.8);
  }
}

TEST(HangTest, OneFailedProbeDoesNotCutANodeOff) {
  FakeJob job = StuckRing(kAllProbesReportedS, kCounts);
  job.Evaluate();
  job.Advance(std::chrono::milliseconds(100));
  const std::vector<Reach> reports[] = {
      {{"n1", false}}, {{"n0", false}, {"n2", true}}, {{"n3", true}}, {{"n2", true}}};
  for (uint32_t node = 0; node < 4; ++node) {
    Digest digest = job.DigestOf(node);
    digest.reach = reports[node];
    job.detector.Observe(digest, job.now());
  }
  const auto verdicts = job.detector.Evaluate(job.now());
  ASSERT_EQ(verdicts.size(), 1U);
  EXPECT_EQ(verdicts[0].confidence, 0.8);
}

TEST(HangTest, ReportsOfOneAgentDoNotCutANodeOff) {
  FakeJob job = StuckRing(kAllProbesReportedS, kCounts);
  job.ProbeOthers({}, 2);
  job.Evaluate();
  job.Advance(std::chrono::milliseconds(100));
  const auto verdicts = job.Evaluate();
  ASSERT_EQ(verdicts.size(), 1U);
  EXPECT_EQ(verdicts[0].confidence, 0.8) << "others report that they received its answers";
}

TEST(HangTest, ARankStoppedInAnOperationIsTheRootAndNotItsConnection) {
  FakeJob job = InOperation({0, 1, 2, 3, 4, 5}, kLongS);
  job.state(3).process_state = 'T';
  job.Evaluate();
  job.Advance(seconds(6));
  const auto verdicts = job.Evaluate();
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_EQ(verdicts[0].fault, FaultClass::kComputeHang);
  EXPECT_THAT(verdicts[0].ranks, ElementsAre(Rank{3}));
  EXPECT_THAT(verdicts[0].evidence[0], HasSubstr("rank 3 is stopped"));
}

TEST(HangTest, AReceiverThatConsumesNothingIsBlamedAsARank) {
  FakeJob job(4);
  job.AddComm(kAll, CommunicatorRole::kData, {0, 1, 2, 3});
  job.Evaluate();
  job.Advance(seconds(70));
  for (uint32_t rank = 0; rank < 4; ++rank) {
    std::optional<PeerEdge> edge;
    if (rank == 1) edge = PeerEdge{Rank{2}, Direction::kSend, EdgeState::kSendPeerWait, 3};
    job.AddFlight(rank, kAll, kReduce, 5, kLongS, 1024, edge);
  }
  const auto verdicts = job.Evaluate();
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_THAT(verdicts[0].ranks, ElementsAre(Rank{2}));
}

TEST(HangTest, DifferentSizesAreASoftwareMismatchAndEvictNoNode) {
  FakeJob job = InOperation({0, 1, 2, 3, 4}, kLongS);
  job.AddFlight(5, kAll, kReduce, 5, kLongS, 2048);
  const auto verdicts = job.Evaluate();
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_EQ(verdicts[0].fault, FaultClass::kSoftwareMismatch);
  EXPECT_THAT(verdicts[0].ranks, ElementsAre(Rank{5}));
  EXPECT_THAT(verdicts[0].nodes, IsEmpty());
  EXPECT_EQ(verdicts[0].action, Action::kRestartInPlace);
}

TEST(HangTest, DifferentSizesOfAnAllToAllAreNoMismatch) {
  FakeJob job(4);
  job.AddComm(kAll, CommunicatorRole::kExpert, {0, 1, 2, 3});
  job.Evaluate();
  job.Advance(seconds(70));
  for (uint32_t rank : {0U, 1U, 2U}) {
    job.AddFlight(rank, kAll, CollectiveKind::kAllToAll, 5, kLongS, 1024 + rank);
  }
  const auto verdicts = job.Evaluate();
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_EQ(verdicts[0].fault, FaultClass::kComputeHang);
}

TEST(HangTest, DifferentOrderInOneCommunicatorIsASoftwareMismatch) {
  FakeJob job(4);
  job.AddComm(kAll, CommunicatorRole::kData, {0, 1, 2, 3});
  job.Evaluate();
  job.Advance(seconds(70));
  for (uint32_t rank : {0U, 1U, 2U}) job.AddFlight(rank, kAll, kReduce, 5, kLongS);
  job.AddFlight(3, kAll, CollectiveKind::kAllGather, 5, kLongS);
  const auto verdicts = job.Evaluate();
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_EQ(verdicts[0].fault, FaultClass::kSoftwareMismatch);
  EXPECT_THAT(verdicts[0].ranks, ElementsAre(Rank{3}));
}

TEST(HangTest, ACycleOverCommunicatorsIsADeadlock) {
  FakeJob job(3);
  job.AddComm(1, CommunicatorRole::kTensor, {0, 1});
  job.AddComm(2, CommunicatorRole::kTensor, {1, 2});
  job.AddComm(3, CommunicatorRole::kData, {0, 2});
  job.Evaluate();
  job.Advance(seconds(70));
  job.AddFlight(0, 1, kReduce, 5, kLongS);
  job.AddFlight(1, 2, kReduce, 5, kLongS);
  job.AddFlight(2, 3, kReduce, 5, kLongS);
  const auto verdicts = job.Evaluate();
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_EQ(verdicts[0].fault, FaultClass::kProgramDeadlock);
  EXPECT_THAT(verdicts[0].nodes, IsEmpty());
  EXPECT_THAT(verdicts[0].evidence, SizeIs(3));
}

TEST(HangTest, ReportsOfDifferentTimesMakeNoCycle) {
  // At first rank 2 waited for rank 0, and now rank 0 waits for rank 2. The report of rank 2 is the
  // older one.
  FakeJob job(4);
  job.AddComm(kAll, CommunicatorRole::kPipeline, {0, 1, 2, 3});
  job.Evaluate();
  job.Advance(seconds(70));
  job.AddFlight(2, kAll, CollectiveKind::kReceive, 0, 8, 1024,
                PeerEdge{Rank{0}, Direction::kReceive, EdgeState::kReceiveWait, 0});
  job.AddFlight(0, kAll, CollectiveKind::kReceive, 0, 1, 1024,
                PeerEdge{Rank{2}, Direction::kReceive, EdgeState::kReceiveWait, 0});
  EXPECT_THAT(job.Evaluate(), IsEmpty());
}

// The transfer from rank 1 to rank 2 hangs, and every rank of the ring waits for its neighbour.
TEST(HangTest, ALostRecordOfAHungTransferMakesNoCycle) {
  FakeJob job(3);
  job.AddComm(kAll, CommunicatorRole::kPipeline, {0, 1, 2});
  job.Evaluate();
  job.Advance(seconds(70));
  job.Evaluate();
  const auto report = [&job](bool lost) {
    job.Advance(seconds(1));
    job.ClearFlights();
    for (const uint32_t rank : {0U, 1U, 2U}) {
      job.AddFlight(rank, kAll, CollectiveKind::kReceive, 7, kLongS, 1024,
                    PeerEdge{Rank{(rank + 2) % 3}, Direction::kReceive, EdgeState::kIdle, 0});
    }
    if (!lost) {
      job.AddFlight(1, kAll, CollectiveKind::kSend, 7, kLongS, 1024,
                    PeerEdge{Rank{2}, Direction::kSend, EdgeState::kIdle, 0});
    }
    return job.Evaluate();
  };
  const auto verdicts = report(false);
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_EQ(verdicts[0].fault, FaultClass::kCommHang);
  EXPECT_THAT(report(true), IsEmpty());
  EXPECT_EQ(report(true).at(0).fault, FaultClass::kSoftwareMismatch) << "it is no lost record";
}

TEST(HangTest, ARankThatCompletedAnOperationIsNotAbsent) {
  FakeJob job = InOperation({}, 0);
  auto report = [&] {
    for (uint32_t node : {0U, 1U, 2U}) {
      Digest digest = job.DigestOf(node);
      for (const RankState& state : digest.ranks) {
        if (node != 0) digest.completed.push_back({state.rank, {{kAll}, kReduce, 6}});
      }
      job.detector.Observe(digest, job.now());
    }
  };
  report();
  job.Advance(seconds(8));
  for (uint32_t rank : {0U, 1U}) job.AddFlight(rank, kAll, kReduce, 5, 8);
  report();
  EXPECT_THAT(job.detector.Evaluate(job.now()), IsEmpty());
}

TEST(HangTest, ARankWithoutReportedCommunicatorsIsNotAbsent) {
  FakeJob job(6);
  job.AddComm(kAll, CommunicatorRole::kData, {0, 1, 2, 3, 4, 5});
  auto report = [&](bool all) {
    for (uint32_t node = 0; node < 3; ++node) {
      Digest digest = job.DigestOf(node);
      if (node == 2 && !all) digest.communicators.clear();  // the digests with them were lost
      job.detector.Observe(digest, job.now());
    }
    return job.detector.Evaluate(job.now());
  };
  EXPECT_THAT(report(false), IsEmpty());
  job.Advance(seconds(70));
  for (uint32_t rank : {0U, 1U, 2U, 5U}) job.AddFlight(rank, kAll, kReduce, 5, kLongS);
  const auto before = report(false);
  ASSERT_THAT(before, SizeIs(1));
  EXPECT_THAT(before[0].ranks, ElementsAre(Rank{3})) << "the reports of 4 and 5 cannot be used yet";
  const auto after = report(true);
  ASSERT_THAT(after, SizeIs(2));
  EXPECT_THAT(after[1].ranks, ElementsAre(Rank{4}));
}

TEST(HangTest, ARankThatProgressedRecentlyDoesNotHang) {
  FakeJob job = InOperation({0, 1, 2, 4, 5}, 200);
  Digest digest = job.DigestOf(1);
  digest.completed.push_back({Rank{3}, {{kAll}, kReduce, 5}});
  job.detector.Observe(digest, job.now());
  EXPECT_THAT(job.Evaluate(), IsEmpty());
  job.Advance(seconds(104));  // 1.5 times the previous pause
  EXPECT_THAT(job.Evaluate(), SizeIs(1));
}

TEST(HangTest, AStalledPipelineStageIsBlamed) {
  FakeJob job(4);
  job.AddComm(kAll, CommunicatorRole::kPipeline, {0, 1, 2, 3});
  job.Evaluate();
  job.Advance(seconds(70));
  for (uint32_t rank : {2U, 3U}) {
    job.AddFlight(rank, kAll, CollectiveKind::kReceive, 0, kLongS, 1024,
                  PeerEdge{Rank{rank - 1}, Direction::kReceive, EdgeState::kReceiveWait, 0});
  }
  job.AddFlight(0, kAll, CollectiveKind::kReceive, 0, kLongS, 1024,
                PeerEdge{Rank{1}, Direction::kReceive, EdgeState::kReceiveWait, 0});
  const auto verdicts = job.Evaluate();
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_THAT(verdicts[0].ranks, ElementsAre(Rank{1}));
}

TEST(HangTest, ClocksMayDriftForADay) {
  FakeJob job(4);
  job.AddComm(kAll, CommunicatorRole::kData, {0, 1, 2, 3});
  Detector detector(Incarnation{1}, 4);
  FakeJob fake(4);
  auto digest_at = [&](uint32_t node, double at_s, double rate) {
    Digest digest = fake.DigestOf(node);
    digest.completed = {{Rank{2 * node}, {{kAll}, kReduce, 5}}};
    digest.communicators = {{.id = {kAll},
                             .role = CommunicatorRole::kData,
                             .members = {Rank{0}, Rank{1}, Rank{2}, Rank{3}}}};
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
    last.in_flight.push_back(FlightOf(rank, kAll, kReduce, 5, 61));
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

TEST(HangTest, ACycleIsNotSuspectedBeforeAllOfItIsOld) {
  for (const double age_s : {1.0, 4.9, 8.0}) {
    FakeJob job(4);
    job.AddComm(kAll, CommunicatorRole::kPipeline, {0, 1, 2, 3});
    job.Evaluate();
    job.Advance(seconds(70));
    job.AddFlight(2, kAll, CollectiveKind::kReceive, 0, 8, 1024,
                  PeerEdge{Rank{0}, Direction::kReceive, EdgeState::kReceiveWait, 0});
    job.AddFlight(0, kAll, CollectiveKind::kReceive, 0, age_s, 1024,
                  PeerEdge{Rank{2}, Direction::kReceive, EdgeState::kReceiveWait, 0});
    EXPECT_THAT(job.Evaluate(), IsEmpty());
    EXPECT_THAT(job.detector.suspicions(), SizeIs(age_s < 5 ? 0 : 1)) << age_s;
  }
}

}  // namespace
}  // namespace holdfast::detect
