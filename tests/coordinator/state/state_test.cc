#include "coordinator/state/state.h"

#include "tests/coordinator/state/harness.h"

namespace holdfast::coord {
namespace {
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

/// Two nodes, one rank each, in incarnation 1.
class StateTest : public ::testing::Test {
 protected:
  void SetUp() override {
    c.Attach("a");
    c.Attach("b");
    ASSERT_EQ(c.Join("a", "run-1", 0, 2).incarnation, Incarnation{1});
    ASSERT_EQ(c.Join("b", "run-1", 1, 2).incarnation, Incarnation{1});
  }
  void CommitMemory(VersionId version) {
    c.Hold("a", {H(version, 0, Tier::kMemory)});
    c.Hold("b", {H(version, 1, Tier::kMemory)});
    ASSERT_THAT(c.Commits(Tier::kMemory), ElementsAre(version));
  }
  void CommitDisk(VersionId version) {
    c.Hold("a", {H(version, 0, Tier::kDisk)});
    c.Hold("b", {H(version, 1, Tier::kDisk)});
    ASSERT_THAT(c.Commits(Tier::kDisk), ElementsAre(version));
  }

  Harness c{[] {
    StateOptions options;
    options.keep_last = 2;
    return options;
  }()};
};

TEST_F(StateTest, RunIdsBecomeIncarnations) {
  EXPECT_EQ(c.Join("a", "run-1", 0, 2).incarnation, Incarnation{1});  // again: the same
  EXPECT_EQ(c.Join("a", "run-2", 0, 2).incarnation, Incarnation{2});
  EXPECT_EQ(c.Join("b", "run-1", 1, 2).outcome.code(), ErrorCode::kFenced);
  c.Restart();
  c.Attach("a");
  EXPECT_EQ(c.Join("a", "run-2", 0, 2).incarnation, Incarnation{2});
  EXPECT_EQ(c.Join("a", "run-1", 0, 2).outcome.code(), ErrorCode::kFenced);
  EXPECT_EQ(c.Join("a", "run-3", 0, 4).incarnation, Incarnation{3});  // another world: a new start
}

TEST_F(StateTest, InvalidJoinsAreRefused) {
  struct {
    const char* what;
    std::string node, run;
    uint32_t rank, world, uid;
    ErrorCode code;
    const char* text;
  } cases[] = {
      {"another user", "a", "run-1", 0, 2, 8, ErrorCode::kPermissionDenied, "belongs to uid 7"},
      {"another world", "a", "run-1", 0, 3, 7, ErrorCode::kInvalidArgument, "has 3 ranks"},
      {"no world", "a", "run-1", 0, 0, 7, ErrorCode::kInvalidArgument, "world of 0"},
      {"rank beyond", "a", "run-1", 2, 2, 7, ErrorCode::kInvalidArgument, "rank 2"},
      {"unknown node", "z", "run-1", 0, 2, 7, ErrorCode::kUnavailable, "not attached"},
  };
  for (const auto& t : cases) {
    Reply reply = c.Join(t.node, t.run, t.rank, t.world, t.uid);
    EXPECT_EQ(reply.outcome.code(), t.code) << t.what;
    EXPECT_THAT(reply.outcome.message(), HasSubstr(t.text)) << t.what;
  }
}

TEST_F(StateTest, AgentsMayAttachForAWhileAfterTheRecordsWereLoaded) {
  c.Restart();
  EXPECT_TRUE(c.state().attaching());
  c.Pass(kAttachTime);
  EXPECT_FALSE(c.state().attaching());
}

TEST_F(StateTest, ARemovedNodeIsBackWhenItsAgentAttaches) {
  const auto shown = [this] {
    std::vector<std::string> names;
    for (const NodeStatus& node : c.state().Nodes()) names.push_back(node.name);
    return names;
  };
  c.Lose("b");
  for (Clock::Duration passed{0}; passed < kAttachTime; passed += std::chrono::seconds(1)) {
    c.Pass(std::chrono::seconds(1));
    c.Hold("a", {});
  }
  c.Apply(DrainSet{.request = 9, .node = "b", .set = true, .why = "gone", .remove = true});
  EXPECT_THAT(shown(), ElementsAre("a"));
  c.Attach("b");
  EXPECT_THAT(shown(), ElementsAre("a", "b"));
  EXPECT_FALSE(c.state().Nodes()[1].drain.has_value());
}

TEST_F(StateTest, AStepThatARankSkippedIsAborted) {
  c.Hold("a", {H(V(1, 4), 0, Tier::kMemory)});  // rank 1 was cut off from its agent then
  c.Hold("b", {H(V(1, 9), 1, Tier::kMemory)});
  c.Hold("b", {H(V(1, 4), 1, Tier::kMemory)});
  EXPECT_THAT(c.Commits(Tier::kMemory), IsEmpty()) << "an aborted version came back";
  c.Hold("a", {H(V(1, 9), 0, Tier::kMemory)});
  EXPECT_THAT(c.Commits(Tier::kMemory), ElementsAre(V(1, 9)));
}

TEST_F(StateTest, CommitNeedsEveryRankAtTheTier) {
  c.Hold("a", {H(V(1, 1), 0, Tier::kMemory)});
  c.Hold("a", {H(V(1, 1), 0, Tier::kMemory)});  // reported twice
  EXPECT_THAT(c.Commits(Tier::kMemory), IsEmpty());
  c.Hold("b", {H(V(1, 1), 1, Tier::kDisk)});
  EXPECT_THAT(c.Commits(Tier::kMemory), IsEmpty());
  c.Hold("b", {H(V(1, 1), 1, Tier::kMemory)});
  EXPECT_THAT(c.Commits(Tier::kMemory), ElementsAre(V(1, 1)));
  EXPECT_THAT(c.Commits(Tier::kDisk), IsEmpty());
  c.Hold("a", {H(V(1, 1), 0, Tier::kDisk)});
  EXPECT_THAT(c.Commits(Tier::kDisk), ElementsAre(V(1, 1)));
  auto record = c.stored.versions.at({"gpt", V(1, 1)});
  EXPECT_EQ(record.tiers, TierBit(Tier::kMemory) | TierBit(Tier::kDisk));
  EXPECT_THAT(record.digests, ElementsAre(1010, 1011));
  EXPECT_EQ(record.bytes, 8192U);
}

TEST_F(StateTest, ReplicasOfALostNodeDoNotCount) {
  c.Hold("a", {H(V(1, 1), 0, Tier::kMemory)});
  c.Lose("a");
  c.Hold("b", {H(V(1, 1), 1, Tier::kMemory)});
  EXPECT_THAT(c.Commits(Tier::kMemory), IsEmpty());
  c.Attach("a", {H(V(1, 1), 0, Tier::kMemory)});
  EXPECT_THAT(c.Commits(Tier::kMemory), ElementsAre(V(1, 1)));
}

TEST_F(StateTest, ABatchCommitsInTheOrderOfItsVersions) {
  c.Hold("a", {H(V(1, 2), 0, Tier::kMemory), H(V(1, 1), 0, Tier::kMemory)});
  c.Hold("b", {H(V(1, 2), 1, Tier::kMemory), H(V(1, 1), 1, Tier::kMemory)});
  EXPECT_THAT(c.Commits(Tier::kMemory), ElementsAre(V(1, 1), V(1, 2)));
}

TEST_F(StateTest, ANewerCommitAbortsOlderOnes) {
  c.Hold("a", {H(V(1, 1), 0, Tier::kMemory)});
  CommitMemory(V(1, 2));
  // 1-1 stays aborted: it is older than a committed version.
  c.Hold("b", {H(V(1, 1), 1, Tier::kMemory)});
  EXPECT_THAT(c.Commits(Tier::kMemory), IsEmpty());
  c.Restart();
  c.Attach("a", {H(V(1, 1), 0, Tier::kMemory), H(V(1, 2), 0, Tier::kMemory)});
  c.Attach("b", {H(V(1, 1), 1, Tier::kMemory), H(V(1, 2), 1, Tier::kMemory)});
  EXPECT_THAT(c.Stored(), ElementsAre(V(1, 2)));
}

TEST_F(StateTest, AFailedShardAbortsItsVersionPermanently) {
  c.Hold("a", {H(V(1, 1), 0, Tier::kMemory)});
  c.ReportFailed("b", V(1, 1), 1, Tier::kMemory);
  ASSERT_THAT(c.Sent<JobState>(), SizeIs(2));
  EXPECT_THAT(c.Sent<JobState>()[0].aborted, ElementsAre(V(1, 1)));
  c.Restart();
  c.Attach("a", {H(V(1, 1), 0, Tier::kMemory)});
  c.Attach("b", {H(V(1, 1), 1, Tier::kMemory)});
  EXPECT_THAT(c.Commits(Tier::kMemory), IsEmpty());
  EXPECT_THAT(c.Sent<JobState>().at(0).aborted, ElementsAre(V(1, 1)));
  EXPECT_EQ(c.Job().committed[Tier::kMemory], std::nullopt);
  CommitMemory(V(1, 2));
  EXPECT_THAT(c.Stored(), ElementsAre(V(1, 2)));  // the record of the abort is erased too
}

TEST_F(StateTest, AFailureOnDiskDoesNotAffectMemory) {
  c.ReportFailed("b", V(1, 1), 1, Tier::kDisk);
  CommitMemory(V(1, 1));
  c.Hold("a", {H(V(1, 1), 0, Tier::kDisk)});
  c.Hold("b", {H(V(1, 1), 1, Tier::kDisk)});
  EXPECT_THAT(c.Commits(Tier::kDisk), IsEmpty());
}

TEST_F(StateTest, OlderIncarnationsNeverCommitNewVersions) {
  CommitMemory(V(1, 1));
  c.Hold("a", {H(V(1, 2), 0, Tier::kMemory)});
  c.Join("a", "run-2", 0, 2);
  EXPECT_THAT(c.Sent<JobState>().at(0).aborted, ElementsAre(V(1, 2)));
  c.Hold("b", {H(V(1, 2), 1, Tier::kMemory)});
  EXPECT_THAT(c.Commits(Tier::kMemory), IsEmpty());
  // A committed version may still be committed on disk.
  c.Hold("a", {H(V(1, 1), 0, Tier::kDisk)});
  c.Hold("b", {H(V(1, 1), 1, Tier::kDisk)});
  EXPECT_THAT(c.Commits(Tier::kDisk), ElementsAre(V(1, 1)));
}

TEST_F(StateTest, ADifferentDigestIsRefused) {
  CommitMemory(V(1, 1));
  StoredReplica wrong = H(V(1, 1), 0, Tier::kDisk);
  wrong.digest ^= 1;
  c.Hold("a", {wrong});
  ASSERT_THAT(c.Findings(), SizeIs(1));
  EXPECT_EQ(c.Findings()[0].code(), ErrorCode::kDataLoss);
  c.Hold("b", {H(V(1, 1), 1, Tier::kDisk)});
  EXPECT_THAT(c.Commits(Tier::kDisk), IsEmpty());
  c.Restart();  // the record has the digests
  c.Attach("a", {wrong});
  ASSERT_THAT(c.Findings(), SizeIs(1));
  EXPECT_EQ(c.Findings()[0].code(), ErrorCode::kDataLoss);
}

TEST_F(StateTest, UnknownReplicasAreNotRemoved) {
  c.Hold("a", {H(V(9, 1), 0, Tier::kDisk), H(V(1, 1), 0, Tier::kDisk, 3)});
  EXPECT_THAT(c.Findings(), SizeIs(2));
  StoredReplica other = H(V(1, 1), 0, Tier::kDisk);
  other.identity.job = "unknown";
  c.Hold("a", {other});
  EXPECT_THAT(c.Findings(), SizeIs(1));
  EXPECT_THAT(c.Sent<RemoveVersion>(), IsEmpty());
}

TEST_F(StateTest, AnAgentThatHasSeenANewerEpochIsRefused) {
  NodeAttached event;
  event.attach = 9000;
  event.node = "ahead";
  event.agent_start = 1;
  event.epoch_seen = Epoch{1000};
  c.Apply(event);
  ASSERT_THAT(c.Closed(), SizeIs(1));
  EXPECT_EQ(c.Closed()[0].attach, 9000U);
  EXPECT_EQ(c.Closed()[0].why.code(), ErrorCode::kFenced);
  EXPECT_THAT(c.Closed()[0].why.message(), ::testing::HasSubstr("has seen epoch 1000"));
}

TEST_F(StateTest, AnOlderAgentIsFenced) {
  c.Attach("a", {}, 5);
  ASSERT_THAT(c.Closed(), SizeIs(1));  // the first agent's stream
  EXPECT_EQ(c.Closed()[0].why.code(), ErrorCode::kFenced);
  c.Attach("a", {H(V(1, 1), 0, Tier::kMemory)}, 4);
  ASSERT_THAT(c.Closed(), SizeIs(1));
  EXPECT_EQ(c.Closed()[0].why.code(), ErrorCode::kFenced);
  NodeReported report = c.NewReport("a");
  report.agent_start = 4;
  c.Apply(report);
  EXPECT_EQ(c.ReplyTo(report.request)->outcome.code(), ErrorCode::kFenced);
  report.agent_start = 5;
  c.Apply(report);
  EXPECT_TRUE(c.ReplyTo(report.request)->outcome.ok());
}

TEST_F(StateTest, ANodeIsLostAfterItsLease) {
  c.Pass(std::chrono::milliseconds(1300));
  c.Apply(c.NewReport("a"));
  c.Pass(std::chrono::milliseconds(2200));  // b: 3.5 s without a report
  ASSERT_THAT(c.Closed(), SizeIs(1));
  EXPECT_THAT(c.Closed()[0].why.message(), HasSubstr("node b"));
  c.Attach("b");
  const NodeDetached detached{"b", 9999};
  c.Apply(detached);  // for a stream that is not b's
  c.Pass(std::chrono::milliseconds(600));
  EXPECT_THAT(c.Closed(), IsEmpty());
}

/// Start counters are compared only between starts of one agent.
TEST_F(StateTest, AnyAgentMayAttachAsALostNode) {
  c.Attach("a", {}, 5, 77);
  c.Lose("a");
  c.Attach("a", {}, 4, 77);  // a restored disk has an older counter
  EXPECT_THAT(c.Closed(), IsEmpty());
  EXPECT_TRUE(c.Report("a").ok());
  c.Lose("a");
  c.Attach("a", {}, 1, 88);  // the disks are new
  EXPECT_THAT(c.Closed(), IsEmpty());
  EXPECT_TRUE(c.Report("a").ok());
}

TEST_F(StateTest, ASecondAgentWithTheSameNameIsRefusedAndShown) {
  c.Attach("a", {}, 5, 77);
  c.Attach("a", {}, 9, 88);
  ASSERT_THAT(c.Closed(), SizeIs(1));
  EXPECT_EQ(c.Closed()[0].why.code(), ErrorCode::kFenced);
  EXPECT_THAT(c.Closed()[0].why.message(), HasSubstr("two agents have one node name"));
  const auto warnings = [this] {
    const auto nodes = c.state().Nodes();
    return nodes.front().health.warnings;
  };
  EXPECT_THAT(warnings(), ElementsAre(HasSubstr("a second agent")));
  NodeReported report = c.NewReport("a");
  report.agent_start = 5;
  c.Apply(report);
  EXPECT_TRUE(c.ReplyTo(report.request)->outcome.ok());  // the first agent is not affected
  // The second agent stops trying.
  for (int second = 0; second < 31; ++second) {
    c.Pass(std::chrono::milliseconds(1000));
    *report.request += 1000;
    c.Apply(report);
  }
  EXPECT_THAT(warnings(), IsEmpty());
  // A later start of the first agent takes over at once, even while the old stream is open.
  c.Attach("a", {}, 6, 77);
  ASSERT_THAT(c.Closed(), SizeIs(1));
  EXPECT_TRUE(c.Report("a").ok());
}

TEST_F(StateTest, NoNodeIsLostForALeaseAfterTheCoordinatorWasSuspended) {
  c.Apply(NodeDetached{"a", c.AttachOf("a")});
  c.Resume();
  c.Pass(std::chrono::milliseconds(2900));
  EXPECT_THAT(c.Closed(), IsEmpty());
  c.Pass(std::chrono::milliseconds(200));
  EXPECT_THAT(c.Closed(), SizeIs(2));  // both are silent
}

TEST_F(StateTest, ASilentNodeIsProbedOnceAndIsSilentWhenLostIfItsStreamStaysOpen) {
  const auto lost = [&](const std::string& node) -> const NodeDeclaredLost* {
    for (const Effect& effect : c.effects) {
      const auto* found = std::get_if<NodeDeclaredLost>(&effect);
      if (found != nullptr && found->node == node) return found;
    }
    return nullptr;
  };
  c.Pass(std::chrono::milliseconds(1100));
  EXPECT_THAT(c.Sent<Welcome>(), IsEmpty());
  c.Pass(std::chrono::milliseconds(200));
  EXPECT_THAT(c.Sent<Welcome>(), SizeIs(2));
  c.Pass(std::chrono::milliseconds(200));
  EXPECT_THAT(c.Sent<Welcome>(), IsEmpty());
  EXPECT_TRUE(c.Report("a").ok());
  c.Pass(std::chrono::milliseconds(1300));
  EXPECT_THAT(c.Sent<Welcome>(), SizeIs(1)) << "a has reported, and is silent again";
  c.Apply(NodeDetached{"a", c.AttachOf("a")});
  c.Pass(std::chrono::milliseconds(300));
  EXPECT_EQ(lost("b"), nullptr) << "the probe may still end its stream";
  c.Pass(std::chrono::milliseconds(200));
  ASSERT_NE(lost("b"), nullptr);
  EXPECT_TRUE(lost("b")->silent);
  ASSERT_NE(lost("a"), nullptr);
  EXPECT_FALSE(lost("a")->silent);
}

TEST_F(StateTest, RetentionKeepsTheNewestAndPinnedVersions) {
  CommitDisk(V(1, 1));
  ASSERT_TRUE(c.Pin(V(1, 1), true).outcome.ok());
  CommitDisk(V(1, 2));
  CommitDisk(V(1, 3));
  EXPECT_THAT(c.Sent<RemoveVersion>(), IsEmpty());
  CommitDisk(V(1, 4));
  EXPECT_THAT(c.Sent<RemoveVersion>(), ElementsAre(RemoveVersion{"gpt", V(1, 2), Tier::kDisk},
                                                   RemoveVersion{"gpt", V(1, 2), Tier::kDisk}));
  EXPECT_EQ(c.stored.versions.at({"gpt", V(1, 2)}).phase, Phase::kRemoving);
  c.ReportRemoved("a", V(1, 2), 0, Tier::kDisk);
  EXPECT_THAT(c.Stored(), ElementsAre(V(1, 1), V(1, 2), V(1, 3), V(1, 4)));
  c.ReportRemoved("b", V(1, 2), 1, Tier::kDisk);
  EXPECT_THAT(c.Stored(), ElementsAre(V(1, 1), V(1, 3), V(1, 4)));
  // A node that still has the version gets the directive to remove it again.
  c.Attach("b", {H(V(1, 2), 1, Tier::kDisk), H(V(1, 3), 1, Tier::kDisk)}, 2);
  EXPECT_THAT(c.Sent<RemoveVersion>(), ElementsAre(RemoveVersion{"gpt", V(1, 2), Tier::kDisk}));
  c.Pin(V(1, 1), false);
  EXPECT_THAT(c.Sent<RemoveVersion>(), SizeIs(1));  // b's new agent has no replica of 1-1
}

TEST_F(StateTest, RetentionNeverRemovesTheNewestRestorableVersion) {
  CommitDisk(V(1, 1));
  ASSERT_TRUE(c.Pin(V(1, 1), true).outcome.ok());
  CommitDisk(V(1, 2));
  CommitDisk(V(1, 3));
  // b loses its shards of the newer versions.
  c.ReportRemoved("b", V(1, 2), 1, Tier::kDisk);
  c.ReportRemoved("b", V(1, 3), 1, Tier::kDisk);
  EXPECT_EQ(c.Job().restorable, V(1, 1));
  c.Pin(V(1, 1), false);
  EXPECT_EQ(c.stored.versions.at({"gpt", V(1, 1)}).phase, Phase::kCommitted);
  EXPECT_THAT(c.Sent<RemoveVersion>(), IsEmpty());
}

TEST_F(StateTest, EveryKthVersionIsKept) {
  StateOptions options;
  options.keep_last = 1;
  options.keep_every = 2;
  Harness k(options);
  k.Attach("a");
  k.Join("a", "run", 0, 1);
  for (uint64_t step = 1; step <= 6; ++step) k.Hold("a", {H(V(1, step), 0, Tier::kDisk, 1)});
  std::vector<VersionId> kept;
  for (const auto& [key, record] : k.stored.versions) {
    if (record.phase == Phase::kCommitted) kept.push_back(key.second);
  }
  EXPECT_THAT(kept, ElementsAre(V(1, 2), V(1, 4), V(1, 6)));
}

TEST_F(StateTest, RecordsInMemoryAreErasedWhenANewerVersionIsOnDisk) {
  CommitMemory(V(1, 1));
  CommitMemory(V(1, 2));
  CommitMemory(V(1, 3));
  EXPECT_THAT(c.Stored(), ElementsAre(V(1, 1), V(1, 2), V(1, 3)));  // they may still reach disk
  CommitDisk(V(1, 2));
  EXPECT_THAT(c.Stored(), ElementsAre(V(1, 2), V(1, 3)));
  // A superseded shard on disk is removed, not committed.
  c.Hold("a", {H(V(1, 1), 0, Tier::kDisk)});
  EXPECT_THAT(c.Sent<RemoveVersion>(), ElementsAre(RemoveVersion{"gpt", V(1, 1), Tier::kDisk}));
  c.Hold("b", {H(V(1, 1), 1, Tier::kDisk)});
  EXPECT_THAT(c.Commits(Tier::kDisk), IsEmpty());
}

TEST_F(StateTest, AVersionThatIsBeingWrittenToDiskIsKeptWhateverFollows) {
  CommitMemory(V(1, 1));
  c.Hold("a", {H(V(1, 1), 0, Tier::kDisk)});
  for (uint64_t step = 2; step <= 300; ++step) CommitMemory(V(1, step));
  EXPECT_LE(c.stored.versions.size(), 130U);
  c.Hold("b", {H(V(1, 1), 1, Tier::kDisk)});
  EXPECT_THAT(c.Commits(Tier::kDisk), ElementsAre(V(1, 1)));
}

TEST_F(StateTest, TheDiskTargetFollowsTheDisk) {
  auto target = [&] { return c.Sent<JobState>().back().target_step[Tier::kDisk]; };
  CommitMemory(V(1, 1));
  EXPECT_EQ(target(), Step{0});  // the first step is written to disk
  CommitMemory(V(1, 2));
  CommitMemory(V(1, 3));
  EXPECT_EQ(target(), Step{0});
  CommitDisk(V(1, 1));
  EXPECT_EQ(target(), Step{4});
  CommitMemory(V(1, 4));
  // One rank reports a failure: the target advances at once.
  c.ReportFailed("b", V(1, 4), 1, Tier::kDisk);
  EXPECT_EQ(target(), Step{5});
  // Ranks that wrote different steps do not block the target forever.
  c.Hold("a", {H(V(1, 5), 0, Tier::kDisk)});
  c.Hold("b", {H(V(1, 6), 1, Tier::kDisk)});
  EXPECT_EQ(target(), Step{7});
}

TEST_F(StateTest, OnlyVersionsOnDiskCanBePinned) {
  EXPECT_EQ(c.Pin(V(1, 1), true).outcome.code(), ErrorCode::kNotFound);
  CommitMemory(V(1, 1));
  EXPECT_EQ(c.Pin(V(1, 1), true).outcome.code(), ErrorCode::kFailedPrecondition);
}

TEST_F(StateTest, RecordsOfSkippedStepsAreBounded) {
  for (uint64_t step = 1; step <= 300; ++step) c.ReportFailed("b", V(1, step), 1, Tier::kMemory);
  EXPECT_LE(c.stored.versions.size(), 64U);
  c.Restart();
  c.Attach("a", {H(V(1, 1), 0, Tier::kMemory)});
  c.Attach("b", {H(V(1, 1), 1, Tier::kMemory)});
  EXPECT_THAT(c.Commits(Tier::kMemory), IsEmpty());  // skipped steps stay aborted
}

/// A node that was cut off has a version that was aborted in the meantime. An attached node has one
/// that was aborted with a hundred others. Neither node frees its slot before the job state lists
/// the version.
TEST_F(StateTest, AnAbortedVersionStaysListedUntilAllNodesHaveFreedIt) {
  c.Hold("a", {H(V(1, 1), 0, Tier::kMemory)});
  c.Hold("b", {H(V(1, 1), 1, Tier::kMemory)});
  c.Lose("b");
  c.Hold("a", {H(V(1, 2), 0, Tier::kMemory)});
  NodeReported report = c.NewReport("a");
  for (uint64_t step = 3; step < 200; ++step) {
    report.failed.push_back({"gpt", V(1, step), Rank{0}, Tier::kMemory, "no slot"});
  }
  c.Apply(report);
  c.Attach("b", {H(V(1, 1), 1, Tier::kMemory), H(V(1, 3), 1, Tier::kMemory)}, 1);
  ASSERT_TRUE(c.JobStateTo("b").has_value());
  EXPECT_THAT(c.JobStateTo("b")->aborted, Contains(V(1, 3)));

  c.ReportFailed("a", V(1, 200), 0, Tier::kMemory);
  ASSERT_TRUE(c.JobStateTo("a").has_value());
  EXPECT_THAT(c.JobStateTo("a")->aborted, Contains(V(1, 2)));
  c.ReportRemoved("a", V(1, 2), 0, Tier::kMemory);
  c.ReportRemoved("b", V(1, 3), 1, Tier::kMemory);
  for (uint64_t step = 201; step < 204; ++step) c.ReportFailed("a", V(1, step), 0, Tier::kMemory);
  ASSERT_TRUE(c.JobStateTo("a").has_value());
  EXPECT_THAT(c.JobStateTo("a")->aborted, Not(AnyOf(Contains(V(1, 2)), Contains(V(1, 3)))));
}

TEST_F(StateTest, StatusNamesMissingRanksAndNodes) {
  CommitMemory(V(1, 7));
  EXPECT_EQ(c.Job().restorable, V(1, 7));
  c.Lose("b");
  JobStatus job = c.Job();
  EXPECT_EQ(job.restorable, std::nullopt);
  EXPECT_THAT(job.not_restorable_why,
              HasSubstr("version 1-7 has no replica of rank 1 (last on b)"));
  EXPECT_THAT(job.not_restorable_why, HasSubstr("not attached: b"));
  auto versions = c.state().Versions("gpt").value();
  ASSERT_THAT(versions, SizeIs(1));
  EXPECT_FALSE(versions[0].restorable);
  EXPECT_EQ(versions[0].available_tiers, 0U);
  EXPECT_EQ(c.state().PlanRestore("gpt", {}, std::nullopt).error().code(),
            ErrorCode::kFailedPrecondition);
  EXPECT_EQ(c.state().Versions("none").error().code(), ErrorCode::kNotFound);
}

}  // namespace
}  // namespace holdfast::coord
