#include <gtest/gtest.h>

#include "tests/coordinator/state/harness.h"

// The flush of a job's newest version, the end of a job, and forgotten jobs.

namespace holdfast::coord {
namespace {
using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr milliseconds kFlush(2000);

StateOptions Options() {
  StateOptions options;
  options.flush_after = kFlush;
  options.end_grace = milliseconds(2000);
  options.release_after = milliseconds(5000);
  options.keep_last = 1;
  options.node_lease = std::chrono::hours(2);  // no node is lost because it does not report
  return options;
}

LocalRank Trainer(uint32_t rank, bool goodbye = false, uint64_t incarnation = 1) {
  return {"gpt", Incarnation{incarnation}, Rank{rank}, goodbye};
}

/// Two ranks on two nodes that have reported their trainers.
void Start(Harness& h, const std::string& run = "run-1", uint64_t incarnation = 1) {
  h.Attach("n0");
  h.Attach("n1");
  h.Join("n0", run, 0, 2);
  h.Join("n1", run, 1, 2);
  h.ReportTrainers("n0", {Trainer(0, false, incarnation)});
  h.ReportTrainers("n1", {Trainer(1, false, incarnation)});
}

void EndAllTrainers(Harness& h, uint64_t incarnation = 1) {
  h.ReportTrainers("n0", {Trainer(0, true, incarnation)});
  h.ReportTrainers("n1", {Trainer(1, true, incarnation)});
}

void Save(Harness& h, VersionId version, Tier tier = Tier::kMemory) {
  h.Hold("n0", {H(version, 0, tier)});
  h.Hold("n1", {H(version, 1, tier)});
}

/// Lets time pass while the nodes carry out their directives.
void Obey(Harness& h, milliseconds time) {
  for (milliseconds passed{}; passed < time; passed += milliseconds(100)) {
    h.Pass(milliseconds(100));
    for (const Effect& effect : std::vector<Effect>(h.effects)) {
      const auto* send = std::get_if<Send>(&effect);
      if (send == nullptr) continue;
      const auto* order = std::get_if<PrepareShard>(&send->directive);
      if (order == nullptr) continue;
      const bool parity = IsParity(order->identity.rank);
      const uint32_t number =
          parity ? ParityNode(order->identity.rank) : order->identity.rank.value;
      const std::string node = "n" + std::to_string(number);
      h.Hold(node,
             {parity ? P(order->identity.version, number, order->into, order->identity.world)
                     : H(order->identity.version, number, order->into, order->identity.world)});
      h.Answer(node, order->request, Status::Ok());
    }
  }
}

TEST(Lifecycle, TheLastVersionIsFlushedToDiskAlthoughTheTargetIsBeyondIt) {
  Harness h(Options());
  Start(h);
  // Steps 2 and 3 are saved while step 1 is written, so the target is beyond them.
  Save(h, V(1, 1));
  Save(h, V(1, 2));
  Save(h, V(1, 3));
  Save(h, V(1, 1), Tier::kDisk);
  EXPECT_EQ(h.Job().committed[Tier::kDisk], V(1, 1));
  h.Pass(kFlush);
  h.Pass(kFlush);
  const auto orders = h.Sent<PrepareShard>();
  ASSERT_THAT(orders, SizeIs(2));
  for (const PrepareShard& order : orders) {
    EXPECT_EQ(order.identity.version, V(1, 3));
    EXPECT_EQ(order.tier, Tier::kMemory);
    EXPECT_EQ(order.into, Tier::kDisk);
    EXPECT_EQ(order.source_node, "n" + std::to_string(order.identity.rank.value));
  }
  Save(h, V(1, 3), Tier::kDisk);
  EXPECT_EQ(h.Job().committed[Tier::kDisk], V(1, 3));
  h.Pass(kFlush);
  EXPECT_THAT(h.Sent<PrepareShard>(), IsEmpty());
}

TEST(Lifecycle, NothingIsFlushedWhileNewerVersionsFollow) {
  Harness h(Options());
  Start(h);
  for (uint64_t step = 1; step <= 40; ++step) {
    Save(h, V(1, step));
    h.Pass(milliseconds(500));
    EXPECT_THAT(h.Sent<PrepareShard>(), IsEmpty()) << step;
  }
}

TEST(Lifecycle, AVersionIsFlushedIfATrainerWaitsForTheDisk) {
  StateOptions options = Options();
  Harness h(options);
  h.disk_every = 100;
  Start(h);
  Save(h, V(1, 7));
  h.Pass(kFlush);
  h.Pass(kFlush);
  EXPECT_THAT(h.Sent<PrepareShard>(), IsEmpty()) << "7 is not one of every 100";
  NodeReported report = h.NewReport("n0");
  report.wanted = {{"gpt", V(1, 7), Tier::kDisk}};
  h.Apply(report);
  Obey(h, 2 * kFlush);
  EXPECT_EQ(h.Job().committed[Tier::kDisk], V(1, 7));
}

TEST(Lifecycle, TheLastVersionOfAFinishedJobIsFlushedAtAnyStep) {
  Harness h(Options());
  h.disk_every = 100;
  Start(h);
  Save(h, V(1, 7));
  EndAllTrainers(h);
  Obey(h, milliseconds(6000));
  EXPECT_EQ(h.Job().phase, JobPhase::kFinished);
  EXPECT_EQ(h.Job().committed[Tier::kDisk], V(1, 7));
}

TEST(Lifecycle, AVersionOfAnEarlierIncarnationIsFlushedToo) {
  Harness h(Options());
  Start(h);
  Save(h, V(1, 5));
  EndAllTrainers(h);
  // A second start that ends without a save.
  h.Join("n0", "run-2", 0, 2);
  h.Join("n1", "run-2", 1, 2);
  EndAllTrainers(h, 2);
  Obey(h, milliseconds(8000));
  EXPECT_EQ(h.Job().committed[Tier::kDisk], V(1, 5));
}

TEST(Lifecycle, ARestartedCoordinatorContinuesTheFlush) {
  Harness h(Options());
  Start(h);
  Save(h, V(1, 5));
  EndAllTrainers(h);
  h.Restart();
  h.Attach("n0", {H(V(1, 5), 0, Tier::kMemory)});
  h.Attach("n1", {H(V(1, 5), 1, Tier::kMemory)});
  Obey(h, milliseconds(8000));
  EXPECT_EQ(h.Job().committed[Tier::kDisk], V(1, 5));
}

TEST(Lifecycle, AFailedDiskWriteIsTriedAgain) {
  Harness h(Options());
  Start(h);
  Save(h, V(1, 5));
  h.Hold("n0", {H(V(1, 5), 0, Tier::kDisk)});
  h.ReportFailed("n1", V(1, 5), 1, Tier::kDisk);
  Obey(h, milliseconds(8000));
  EXPECT_EQ(h.Job().committed[Tier::kDisk], V(1, 5));
}

TEST(Lifecycle, MissingParityIsBuiltWhenNoNewerVersionFollows) {
  Harness h(Options());
  h.peers = true;
  Start(h);
  Save(h, V(1, 5));
  h.Hold("n0", {P(V(1, 5), 0, Tier::kMemory, 2)});
  h.ReportFailedParity("n1", V(1, 5), 1, Tier::kPeer);
  Save(h, V(1, 5), Tier::kDisk);
  EXPECT_EQ(h.Job().committed[Tier::kPeer], std::nullopt);
  Obey(h, milliseconds(8000));
  EXPECT_EQ(h.Job().committed[Tier::kPeer], V(1, 5));
}

TEST(Lifecycle, AVersionThatIsNotDurableIsShownUntilItIs) {
  Harness h(Options());
  Start(h);
  Save(h, V(1, 5));
  EXPECT_EQ(h.Job().not_durable_why, "") << "a running job is always a little behind";
  EndAllTrainers(h);
  h.Pass(milliseconds(2100));
  EXPECT_EQ(h.Job().phase, JobPhase::kFinished);
  EXPECT_THAT(h.Job().not_durable_why, HasSubstr("1-5"));
  Obey(h, milliseconds(8000));
  EXPECT_EQ(h.Job().not_durable_why, "");
}

TEST(Lifecycle, AJobWhoseTrainersDiedHasEndedAndKeepsItsMemory) {
  Harness h(Options());
  Start(h);
  Save(h, V(1, 5));
  h.ReportTrainers("n0", {});
  h.ReportTrainers("n1", {});
  Obey(h, milliseconds(60'000));
  EXPECT_EQ(h.Job().phase, JobPhase::kEnded);
  EXPECT_EQ(h.Job().committed[Tier::kDisk], V(1, 5));
  h.Attach("n0", {H(V(1, 5), 0, Tier::kMemory)});
  EXPECT_FALSE(h.JobStateTo("n0")->release);
}

TEST(Lifecycle, AFinishedJobIsReleasedOnceItIsSafe) {
  Harness h(Options());
  Start(h);
  Save(h, V(1, 5));
  EndAllTrainers(h);
  h.Pass(milliseconds(2100));
  h.Pass(milliseconds(20'000));
  h.Attach("n0", {H(V(1, 5), 0, Tier::kMemory)}, 2);
  EXPECT_FALSE(h.JobStateTo("n0")->release) << "the version is in memory only";
  Save(h, V(1, 5), Tier::kDisk);
  h.Pass(milliseconds(6000));
  ASSERT_TRUE(h.JobStateTo("n1").has_value());
  EXPECT_TRUE(h.JobStateTo("n1")->release);
  EXPECT_EQ(h.JobStateTo("n1")->phase, JobPhase::kFinished);
  // Released memory is not repaired.
  h.ReportRemoved("n0", V(1, 5), 0, Tier::kMemory);
  h.ReportRemoved("n1", V(1, 5), 1, Tier::kMemory);
  Obey(h, milliseconds(20'000));
  EXPECT_EQ(h.Job().restorable, V(1, 5));
  h.Join("n0", "run-2", 0, 2);
  EXPECT_EQ(h.Job().phase, JobPhase::kRunning);
  EXPECT_FALSE(h.JobStateTo("n0")->release);
}

TEST(Lifecycle, TheEndOfARunIsTheEndOfItsJob) {
  Harness h(Options());
  Start(h);
  h.Apply(RunStateChanged{"gpt", true, false});
  h.ReportTrainers("n0", {});
  h.ReportTrainers("n1", {});
  h.Pass(milliseconds(60'000));
  EXPECT_EQ(h.Job().phase, JobPhase::kRunning) << "the run restarts it";
  h.Apply(RunStateChanged{"gpt", false, true});
  h.Pass(milliseconds(2100));
  EXPECT_EQ(h.Job().phase, JobPhase::kFinished);
}

TEST(Lifecycle, AFinishedJobStaysFinishedAfterACoordinatorRestart) {
  Harness h(Options());
  Start(h);
  Save(h, V(1, 5), Tier::kMemory);
  EndAllTrainers(h);
  h.Pass(milliseconds(2100));
  h.ranks.clear();  // the job is released: the agents no longer report its trainers
  h.Restart();
  h.Attach("n0");
  h.Attach("n1");
  h.Pass(milliseconds(3000));
  EXPECT_EQ(h.Job().phase, JobPhase::kFinished);
}

TEST(Lifecycle, ALostNodesTrainersStillCountForAWhile) {
  StateOptions options = Options();
  options.node_lease = std::chrono::seconds(5);
  Harness h(options);
  Start(h);
  h.ReportTrainers("n0", {});
  h.Lose("n1");
  const auto pass = [&](int seconds) {
    for (int i = 0; i < seconds; ++i) {
      h.Pass(std::chrono::seconds(1));
      h.ReportTrainers("n0", {});
    }
  };
  pass(20);
  EXPECT_EQ(h.Job().phase, JobPhase::kRunning);
  pass(20);
  EXPECT_EQ(h.Job().phase, JobPhase::kEnded);
}

TEST(Forget, IsRefusedWhileTheJobRuns) {
  Harness h(Options());
  Start(h);
  const Reply reply = h.Forget();
  EXPECT_EQ(reply.outcome.code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(reply.outcome.message(), HasSubstr("rank 0 is connected on node n0"));
  h.ReportTrainers("n0", {});
  h.ReportTrainers("n1", {});
  h.Apply(RunStateChanged{"gpt", true, false});
  EXPECT_THAT(h.Forget().outcome.message(), HasSubstr("holdfast stop gpt"));
}

void SaveAndEnd(Harness& h) {
  Start(h);
  Save(h, V(1, 5));
  Save(h, V(1, 5), Tier::kDisk);
  EndAllTrainers(h);
  h.Pass(milliseconds(2100));
}

TEST(Forget, RemovesRecordsAndNameAndNotifiesEveryNode) {
  Harness h(Options());
  SaveAndEnd(h);
  ASSERT_TRUE(h.Forget().outcome.ok());
  EXPECT_TRUE(h.stored.versions.empty());
  EXPECT_TRUE(h.stored.lineages.empty());
  for (const std::string node : {"n0", "n1"}) {
    ASSERT_TRUE(h.JobStateTo(node).has_value()) << node;
    EXPECT_TRUE(h.JobStateTo(node)->forget);
    EXPECT_EQ(h.JobStateTo(node)->incarnation, Incarnation{1});
  }
  EXPECT_EQ(h.state().Jobs("gpt").error().code(), ErrorCode::kNotFound);
  for (uint32_t rank : {0U, 1U}) {
    const std::string node = "n" + std::to_string(rank);
    h.ReportRemoved(node, V(1, 5), rank, Tier::kMemory);
    h.ReportRemoved(node, V(1, 5), rank, Tier::kDisk);
  }
  EXPECT_TRUE(h.stored.jobs.empty()) << "all nodes have removed their replicas";
}

TEST(Forget, ANodeThatWasAwayRemovesItsReplicasWhenItReturns) {
  Harness h(Options());
  SaveAndEnd(h);
  h.Lose("n1");
  EXPECT_THAT(h.Forget().nodes, ElementsAre("n1"));
  h.Restart();
  h.Attach("n1", {H(V(1, 5), 1, Tier::kDisk)});
  ASSERT_TRUE(h.JobStateTo("n1").has_value());
  EXPECT_TRUE(h.JobStateTo("n1")->forget);
  h.ReportRemoved("n1", V(1, 5), 1, Tier::kDisk);
  h.Attach("n0");  // it has removed its replicas meanwhile
  EXPECT_TRUE(h.stored.jobs.empty());
}

TEST(Forget, TheNameIsFreeAtOnceAndOldReplicasNeverCount) {
  Harness h(Options());
  SaveAndEnd(h);
  h.Lose("n1");
  ASSERT_TRUE(h.Forget().outcome.ok());
  h.Attach("n0");
  EXPECT_EQ(h.Join("n0", "run-1", 0, 1, /*uid=*/8).incarnation, Incarnation{2})
      << "a job of another user with a run ID of the old job";
  h.Hold("n0", {H(V(2, 1), 0, Tier::kMemory, 1)});
  h.Attach("n1", {H(V(1, 5), 1, Tier::kDisk)});
  ASSERT_TRUE(h.JobStateTo("n1").has_value());
  EXPECT_TRUE(h.JobStateTo("n1")->forget);
  EXPECT_EQ(h.JobStateTo("n1")->incarnation, Incarnation{1});
  EXPECT_THAT(h.Stored(), ElementsAre(V(2, 1)));
  h.Restart();
  h.Attach("n1", {H(V(1, 5), 1, Tier::kDisk)});
  EXPECT_TRUE(h.JobStateTo("n1")->forget) << "also after a restart of the coordinator";
}

TEST(Forget, EndedJobsAreForgottenAfterAConfiguredTime) {
  StateOptions options = Options();
  options.forget_after = std::chrono::hours(1);
  Harness h(options);
  SaveAndEnd(h);
  for (int i = 0; i < 59; ++i) {
    h.Attach("n0", {H(V(1, 5), 0, Tier::kDisk)});
    h.Attach("n1", {H(V(1, 5), 1, Tier::kDisk)});
    h.Pass(std::chrono::minutes(1));
  }
  EXPECT_TRUE(h.state().Jobs("gpt").has_value());
  h.Pass(std::chrono::minutes(2));
  EXPECT_FALSE(h.state().Jobs("gpt").has_value());
}

TEST(Retention, AJobsOwnValuesReplaceTheCoordinators) {
  Harness h(Options());
  Start(h);
  ASSERT_TRUE(h.Retain(2, 4).outcome.ok());
  h.Restart();
  Start(h);
  for (uint64_t step = 1; step <= 9; ++step) {
    Save(h, V(1, step));
    Save(h, V(1, step), Tier::kDisk);
    for (uint64_t older = 1; older < step; ++older) {
      const auto found = h.stored.versions.find({"gpt", V(1, older)});
      if (found == h.stored.versions.end() || found->second.phase != Phase::kRemoving) continue;
      h.ReportRemoved("n0", V(1, older), 0, Tier::kDisk);
      h.ReportRemoved("n1", V(1, older), 1, Tier::kDisk);
    }
  }
  EXPECT_THAT(h.Stored(), ElementsAre(V(1, 4), V(1, 8), V(1, 9)));
  EXPECT_EQ(h.Job().keep_last, 2U);
}

TEST(Lifecycle, TheNumberOfRecordsIsBounded) {
  Harness h(Options());
  Start(h);
  const auto records = [&] { return h.stored.versions.size() + h.stored.lineages.size(); };
  size_t most = 0;
  for (uint64_t step = 1; step <= 200'000; ++step) {
    // One rank skips every third step, so there are aborted versions too.
    h.Hold("n0", {H(V(1, step), 0, Tier::kMemory)});
    if (step % 3 != 0) h.Hold("n1", {H(V(1, step), 1, Tier::kMemory)});
    if (step % 50 == 1) Save(h, V(1, step), Tier::kDisk);
    if (step > 2) {
      h.ReportRemoved("n0", V(1, step - 2), 0, Tier::kMemory);
      h.ReportRemoved("n1", V(1, step - 2), 1, Tier::kMemory);
    }
    if (step % 50 == 2 && step > 50) {
      h.ReportRemoved("n0", V(1, step - 51), 0, Tier::kDisk);
      h.ReportRemoved("n1", V(1, step - 51), 1, Tier::kDisk);
    }
    most = std::max(most, records());
    ASSERT_LE(most, 300U) << step;
  }
  EXPECT_LE(h.state().Versions("gpt")->size(), 300U);
}

}  // namespace
}  // namespace holdfast::coord
