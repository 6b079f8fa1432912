#include "tests/coordinator/state/harness.h"

// Lives of the store: replicas of another life do not count until they are adopted.

namespace holdfast::coord {
namespace {
constexpr LifeId kA{0xa};
constexpr LifeId kB{0xb};

StateOptions Life(LifeId life) {
  StateOptions options;
  options.life = life;
  return options;
}

StoredReplica Of(LifeId life, StoredReplica report, uint64_t digest = 0) {
  report.life = life;
  if (digest != 0) report.digest = digest;
  return report;
}

/// Returns replicas of both ranks of `version` at `tier`.
std::vector<StoredReplica> Both(LifeId life, VersionId version, Tier tier, uint64_t salt = 0) {
  std::vector<StoredReplica> all;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    StoredReplica one = Of(life, H(version, rank, tier));
    one.digest += salt;
    all.push_back(one);
  }
  return all;
}

class LivesTest : public testing::Test {
 protected:
  void Start(Harness& h, const std::string& run) {
    ASSERT_TRUE(h.Join("n1", run, 0, 2).outcome.ok());
    ASSERT_TRUE(h.Join("n1", run, 1, 2).outcome.ok());
  }
  std::vector<AdoptedVersion> Adopt(Harness& h, bool dry_run, LifeId life = {}) {
    h.Apply(AdoptRequested{7, "", life, dry_run, 7});  // the user of Harness::Join
    return h.ReplyTo(7)->adopted;
  }
};

TEST_F(LivesTest, VersionsOfAPreviousLifeAreNeverCommitted) {
  Harness h(Life(kB));
  std::vector<StoredReplica> before = Both(kA, V(1, 102), Tier::kDisk, 1'000'000);
  h.Attach("n1", before);
  EXPECT_TRUE(h.Stored().empty());
  Start(h, "second");
  EXPECT_EQ(h.Job().incarnation.value, 2U) << "no number is used twice";
  h.RequestRestore("n1", 2, 0);
  h.Hold("n1", Both(kB, V(2, 1), Tier::kMemory));
  EXPECT_THAT(h.Commits(Tier::kMemory), testing::ElementsAre(V(2, 1)));
  // The coordinator restarts: its agents list all their replicas.
  h.Restart();
  std::vector<StoredReplica> all = before;
  for (const StoredReplica& one : Both(kB, V(2, 1), Tier::kMemory)) all.push_back(one);
  h.Attach("n1", all);
  EXPECT_THAT(h.Stored(), testing::ElementsAre(V(2, 1)));
  EXPECT_EQ(h.Job().restorable, V(2, 1));
  EXPECT_TRUE(h.Sent<RemoveVersion>().empty()) << "quarantined replicas are not deleted";
  ASSERT_EQ(h.state().Nodes()[0].other_lives.size(), 1U);
  EXPECT_EQ(h.state().Nodes()[0].other_lives[0].life, kA);
  EXPECT_EQ(h.state().Nodes()[0].other_lives[0].shards, 2U);
}

// Both lives use the same numbers: a node with old replicas attaches after the job has started.
TEST_F(LivesTest, TheSameVersionNumberOfAnotherLifeDoesNotCount) {
  Harness h(Life(kB));
  h.Attach("n1");
  Start(h, "second");
  h.Hold("n1", {Of(kB, H(V(1, 5), 0, Tier::kMemory))});
  h.Attach("n2", Both(kA, V(1, 5), Tier::kMemory, 77));
  EXPECT_TRUE(h.Stored().empty()) << "one rank of each life is no version";
  h.Hold("n1", {Of(kB, H(V(1, 5), 1, Tier::kMemory))});
  EXPECT_THAT(h.Commits(Tier::kMemory), testing::ElementsAre(V(1, 5)));
  EXPECT_EQ(h.state().PlanRestore("gpt", V(1, 5), std::nullopt)->sources[0].node, "n1");
}

NodeAttached Attaching(LifeId life_seen, Epoch epoch_seen,
                       std::vector<StoredReplica> replicas = {}) {
  NodeAttached event;
  event.attach = 900;
  event.node = "n1";
  event.agent_start = 1;
  event.life_seen = life_seen;
  event.epoch_seen = epoch_seen;
  event.replicas = std::move(replicas);
  return event;
}

TEST_F(LivesTest, ReplicasWithoutALifeBelongToTheLifeThatTheirNodeSeesFirst) {
  Harness h(Life(kB));
  h.Attach("n1");
  Start(h, "one");
  // An older agent reports new replicas.
  h.Hold("n1", Both({}, V(1, 1), Tier::kMemory));
  EXPECT_THAT(h.Stored(), testing::ElementsAre(V(1, 1)));
  h.Restart();
  std::vector<StoredReplica> all = Both({}, V(1, 1), Tier::kMemory);
  for (const StoredReplica& one : Both({}, V(1, 2), Tier::kMemory)) all.push_back(one);
  h.Attach("n1", all);
  EXPECT_THAT(h.Stored(), testing::ElementsAre(V(1, 1), V(1, 2))) << "it has seen no life before";
  // The agent has seen another life before: replicas count only if a record has their digests.
  h.Restart();
  for (const StoredReplica& one : Both({}, V(1, 3), Tier::kMemory)) all.push_back(one);
  h.Apply(Attaching(kA, Epoch{1}, all));
  EXPECT_THAT(h.Stored(), testing::ElementsAre(V(1, 1), V(1, 2)));
  EXPECT_EQ(h.Job().restorable, V(1, 2));
  ASSERT_EQ(h.state().Nodes()[0].other_lives.size(), 1U);
  EXPECT_EQ(h.state().Nodes()[0].other_lives[0].newest, V(1, 3));
}

TEST_F(LivesTest, AnInventoryOfThisLifeCommitsWhatWasNotYetCommitted) {
  Harness h(Life(kB));
  h.Attach("n1");
  Start(h, "one");
  h.Restart();
  h.Attach("n1", Both(kB, V(1, 3), Tier::kMemory));
  EXPECT_THAT(h.Stored(), testing::ElementsAre(V(1, 3)));
}

TEST_F(LivesTest, AnOlderEpochOfTheSameLifeIsRefusedAndShown) {
  Harness h(Life(kA));
  h.Apply(Attaching(kA, Epoch{40}));
  ASSERT_EQ(h.Closed().size(), 1U);
  EXPECT_EQ(h.Closed()[0].why.code(), ErrorCode::kFenced);
  ASSERT_EQ(h.state().Refused().size(), 1U);
  EXPECT_EQ(h.state().Refused()[0].node, "n1");
  EXPECT_THAT(h.state().Refused()[0].why, testing::HasSubstr("docs/backup.md"));
  // Epochs of different lives are not compared.
  h.Apply(Attaching(kB, Epoch{40}));
  EXPECT_TRUE(h.state().Nodes()[0].alive);
  EXPECT_TRUE(h.state().Refused().empty());
  // An agent that no longer tries to attach disappears from the list.
  h.Apply(Attaching(kA, Epoch{41}));
  ASSERT_EQ(h.state().Refused().size(), 1U);
  h.Pass(std::chrono::seconds(31));
  EXPECT_TRUE(h.state().Refused().empty());
}

// The store is an older copy of itself: versions of an incarnation that it never had are
// quarantined.
TEST_F(LivesTest, VersionsOfAnUnknownIncarnationOfThisLifeAreQuarantined) {
  Harness h(Life(kA));
  h.Attach("n1");
  Start(h, "one");
  h.Attach("n2", Both(kA, V(4, 9), Tier::kDisk));
  EXPECT_TRUE(h.Stored().empty());
  ASSERT_EQ(h.state().Nodes()[1].other_lives.size(), 1U);
  EXPECT_THAT(Adopt(h, false)[0].why_not, testing::HasSubstr("start it once more"));
  Start(h, "two");
  EXPECT_EQ(h.Job().incarnation.value, 5U);
  EXPECT_EQ(Adopt(h, false)[0].why_not, "");
  EXPECT_THAT(h.Stored(), testing::ElementsAre(V(4, 9)));
  EXPECT_TRUE(h.state().Nodes()[1].other_lives.empty());
}

TEST_F(LivesTest, VersionsInARestoredBackupCountByTheirDigests) {
  Harness h(Life(kA));
  h.Attach("n1");
  Start(h, "one");
  h.Hold("n1", Both(kA, V(1, 1), Tier::kMemory));
  h.Hold("n1", Both(kA, V(1, 1), Tier::kDisk));
  h.Restart(Life(kB));  // the same records in a new life
  std::vector<StoredReplica> all = Both(kA, V(1, 1), Tier::kDisk);
  for (const StoredReplica& one : Both(kA, V(1, 2), Tier::kDisk)) all.push_back(one);
  h.Attach("n1", all);
  EXPECT_THAT(h.Stored(), testing::ElementsAre(V(1, 1))) << "1-2 may have been abandoned since";
  EXPECT_EQ(h.Job().restorable, V(1, 1));
}

TEST_F(LivesTest, ReplicasThatDifferFromTheRecordAreQuarantined) {
  Harness h(Life(kA));
  h.Attach("n1");
  Start(h, "one");
  h.Hold("n1", Both(kA, V(1, 1), Tier::kDisk));
  h.Restart(Life(kB));
  h.Attach("n1", Both(kA, V(1, 1), Tier::kDisk, 77));
  for (const Status& finding : h.Findings()) {
    EXPECT_NE(finding.code(), ErrorCode::kDataLoss) << finding.ToString();  // this is not damage
  }
  ASSERT_EQ(h.state().Nodes()[0].other_lives.size(), 1U);
  EXPECT_EQ(h.state().Nodes()[0].other_lives[0].shards, 2U);
  EXPECT_THAT(Adopt(h, false)[0].why_not, testing::HasSubstr("with other bytes"));
}

TEST_F(LivesTest, CompleteVersionsAreAdopted) {
  Harness h(Life(kB));
  std::vector<StoredReplica> all = Both(kA, V(3, 420), Tier::kDisk);
  for (const StoredReplica& one : Both(kA, V(3, 419), Tier::kMemory)) all.push_back(one);
  all.push_back(Of(kA, H(V(3, 421), 0, Tier::kDisk)));  // without rank 1
  h.Attach("n1", all);
  std::vector<AdoptedVersion> would = Adopt(h, /*dry_run=*/true);
  ASSERT_EQ(would.size(), 3U);
  EXPECT_EQ(would[0].version, V(3, 421));
  EXPECT_THAT(would[0].why_not, testing::HasSubstr("rank 1 has none"));
  EXPECT_EQ(would[1].version, V(3, 420));
  EXPECT_EQ(would[1].why_not, "");
  EXPECT_TRUE(h.Stored().empty()) << "a dry run changes nothing";
  Adopt(h, /*dry_run=*/false);
  EXPECT_THAT(h.Stored(), testing::ElementsAre(V(3, 419), V(3, 420)));
  EXPECT_EQ(h.Job().restorable, V(3, 420));
  // The adopted version is still part of the job's history after a restart.
  h.Restart();
  h.Attach("n1", all);
  EXPECT_EQ(h.Job().restorable, V(3, 420));
  Start(h, "next");
  EXPECT_EQ(h.Job().incarnation.value, 4U);
  const RequestId waiter = h.RequestReshard("n1", 4, 0);
  ASSERT_TRUE(h.ReplyTo(waiter).has_value());
  EXPECT_EQ(h.ReplyTo(waiter)->version, V(3, 420));
}

// A backup of the store was restored. Versions that the job's incarnation saved after the backup
// was made are adopted, unless the job has started again since.
TEST_F(LivesTest, VersionsFromAfterTheBackupAreAdopted) {
  Harness h(Life(kA));
  h.Attach("n1");
  Start(h, "one");
  h.Hold("n1", Both(kA, V(1, 1), Tier::kDisk));
  h.Restart(Life(kB));
  std::vector<StoredReplica> all = Both(kA, V(1, 1), Tier::kDisk);
  for (const StoredReplica& one : Both(kA, V(1, 2), Tier::kDisk)) all.push_back(one);
  h.Attach("n1", all);
  EXPECT_EQ(h.Job().restorable, V(1, 1));
  EXPECT_EQ(Adopt(h, false)[0].why_not, "");
  EXPECT_EQ(h.Job().restorable, V(1, 2));
  EXPECT_TRUE(h.state().Nodes()[0].other_lives.empty());

  Harness late(Life(kA));
  late.Attach("n1");
  Start(late, "one");
  late.Hold("n1", Both(kA, V(1, 1), Tier::kDisk));
  late.Restart(Life(kB));
  late.Attach("n1", all);
  Start(late, "two");
  EXPECT_EQ(late.ReplyTo(late.RequestReshard("n1", 2, 0))->version, V(1, 1));
  EXPECT_THAT(Adopt(late, false)[0].why_not, testing::HasSubstr("restored an older version"));
}

// An agent may have failures to report when the store is replaced, or reports them late: a save
// that the change of the life ended, a write to disk that a newer one replaced, parity that was not
// made.
TEST_F(LivesTest, FailuresOfAnotherLifeDoNotPreventAdoption) {
  StateOptions before = GroupsOf(2, 1);
  before.life = kA;
  StateOptions after = before;
  after.life = kB;
  Harness h(before);
  h.peers = true;
  h.Attach("n1");
  h.Attach("n2");
  ASSERT_TRUE(h.Join("n1", "one", 0, 2).outcome.ok());
  ASSERT_TRUE(h.Join("n2", "one", 1, 2).outcome.ok());
  const auto hold = [&](VersionId version) {
    h.Hold("n1", {Of(kA, H(version, 0, Tier::kDisk))});
    h.Hold("n2", {Of(kA, H(version, 1, Tier::kDisk))});
  };
  hold(V(1, 1));
  h.Restart(after);
  std::vector<StoredReplica> first;
  std::vector<StoredReplica> second;
  for (uint64_t step = 1; step <= 4; ++step) {
    first.push_back(Of(kA, H(V(1, step), 0, Tier::kDisk)));
    second.push_back(Of(kA, H(V(1, step), 1, Tier::kDisk)));
  }
  h.Attach("n1", first);
  h.Attach("n2", second);
  h.ReportFailed("n1", V(1, 2), 0, Tier::kDisk);
  h.ReportFailed("n2", V(1, 3), 1, Tier::kMemory);
  h.ReportFailedParity("n1", V(1, 4), 0, Tier::kPeer);
  EXPECT_THAT(h.Stored(), testing::ElementsAre(V(1, 1)));
  for (const AdoptedVersion& one : Adopt(h, false)) {
    EXPECT_EQ(one.why_not, "") << ToString(one.version);
  }
  EXPECT_THAT(h.Stored(), testing::ElementsAre(V(1, 1), V(1, 2), V(1, 3), V(1, 4)));
  // A failure that comes after the adoption changes nothing, and a next start restores the newest.
  h.ReportFailed("n1", V(1, 4), 0, Tier::kDisk);
  h.ReportFailed("n1", V(1, 5), 0, Tier::kMemory);
  EXPECT_THAT(h.Stored(), testing::ElementsAre(V(1, 1), V(1, 2), V(1, 3), V(1, 4)));
  EXPECT_EQ(h.Job().restorable, V(1, 4));
}

// Parity that an agent builds in this life for a quarantined version makes no version either.
TEST_F(LivesTest, ParityOfThisLifeDoesNotPreventTheAdoptionOfItsVersion) {
  StateOptions options = GroupsOf(2, 1);
  options.life = kA;
  Harness h(options);
  h.peers = true;
  h.Attach("n1");
  h.Attach("n2");
  ASSERT_TRUE(h.Join("n1", "one", 0, 2).outcome.ok());
  ASSERT_TRUE(h.Join("n2", "one", 1, 2).outcome.ok());
  options.life = kB;
  h.Restart(options);
  h.Attach("n1", {Of(kA, H(V(1, 2), 0, Tier::kDisk))});
  h.Attach("n2", {Of(kA, H(V(1, 2), 1, Tier::kDisk))});
  h.Hold("n1", {Of(kB, H(V(1, 2), ParityRank(0).value, Tier::kMemory))});
  for (const AdoptedVersion& one : Adopt(h, false)) {
    EXPECT_EQ(one.why_not, "") << ToString(one.version);
  }
  EXPECT_THAT(h.Stored(), testing::ElementsAre(V(1, 2)));
}

// The job started again before its versions were adopted. Its new versions stay the newest, and
// retention and restarts keep the adopted one.
TEST_F(LivesTest, AnAdoptedVersionIsKeptIfTheJobHasStartedAgainBefore) {
  Harness h(Life(kB));
  std::vector<StoredReplica> all = Both(kA, V(3, 420), Tier::kDisk);
  h.Attach("n1", all);
  Start(h, "fresh");
  h.RequestRestore("n1", 4, 0);
  const auto save = [&](uint64_t incarnation, uint64_t step) {
    h.Hold("n1", Both(kB, V(incarnation, step), Tier::kMemory));
    h.Hold("n1", Both(kB, V(incarnation, step), Tier::kDisk));
  };
  for (uint64_t step = 1; step <= 5; ++step) save(4, step);
  EXPECT_EQ(Adopt(h, false)[0].why_not, "");
  EXPECT_EQ(h.Job().restorable, V(4, 5));
  Start(h, "next");
  EXPECT_EQ(h.ReplyTo(h.RequestReshard("n1", 5, 0))->version, V(4, 5));
  for (uint64_t step = 6; step <= 12; ++step) save(5, step);
  EXPECT_THAT(h.Stored(), testing::Contains(V(3, 420)));
  const auto versions = *h.state().Versions("gpt");
  const bool abandoned = std::any_of(
      versions.begin(), versions.end(),
      [](const VersionStatus& one) { return one.version == V(3, 420) && one.abandoned; });
  EXPECT_FALSE(abandoned);
}

TEST_F(LivesTest, AJobWithOnlyQuarantinedReplicasCanBeForgotten) {
  Harness h(Life(kB));
  h.Attach("n1", Both(kA, V(3, 420), Tier::kDisk));
  h.Apply(JobForgotten{9, "gpt"});
  ASSERT_TRUE(h.ReplyTo(9).has_value());
  EXPECT_TRUE(h.ReplyTo(9)->outcome.ok()) << h.ReplyTo(9)->outcome.ToString();
  const auto job_states = h.Sent<JobState>();
  ASSERT_FALSE(job_states.empty());
  EXPECT_TRUE(job_states.back().forget);
  EXPECT_EQ(job_states.back().incarnation.value, 3U);
  h.ReportRemoved("n1", V(3, 420), 0, Tier::kDisk);
  h.ReportRemoved("n1", V(3, 420), 1, Tier::kDisk);
  EXPECT_TRUE(h.state().Nodes()[0].other_lives.empty());
  h.Apply(JobForgotten{10, "gpt"});
  EXPECT_EQ(h.ReplyTo(10)->outcome.code(), ErrorCode::kNotFound);
}

TEST_F(LivesTest, AmbiguousVersionsAreNotAdopted) {
  Harness h(Life(kB));
  h.Attach("n1", Both(kA, V(1, 5), Tier::kDisk));
  h.Attach("n2", Both(kA, V(1, 5), Tier::kDisk, 9));
  NodeAttached event = Attaching(kA, Epoch{1}, Both({}, V(2, 1), Tier::kDisk));
  event.node = "n3";
  h.Apply(event);
  std::vector<AdoptedVersion> would = Adopt(h, /*dry_run=*/false);
  ASSERT_EQ(would.size(), 2U);
  EXPECT_THAT(would[0].why_not, testing::HasSubstr("name no life"));
  EXPECT_THAT(would[1].why_not, testing::HasSubstr("not the same on nodes n1 and n2"));
  EXPECT_TRUE(h.Stored().empty());
}

TEST_F(LivesTest, AdoptionDoesNotChangeARunningIncarnation) {
  Harness h(Life(kB));
  h.Attach("n1");
  Start(h, "second");
  h.Hold("n1", Both(kB, V(1, 1), Tier::kMemory));
  h.Attach("n2", Both(kA, V(1, 7), Tier::kDisk, 3));
  EXPECT_THAT(Adopt(h, false)[0].why_not, testing::HasSubstr("its own incarnation 1"));
  h.Attach("n2", Both(kA, V(6, 7), Tier::kDisk, 3));
  EXPECT_THAT(Adopt(h, false)[0].why_not, testing::HasSubstr("start it once more"));
  EXPECT_THAT(h.Stored(), testing::ElementsAre(V(1, 1)));
}

}  // namespace
}  // namespace holdfast::coord
