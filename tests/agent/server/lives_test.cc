#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <functional>

#include "tests/agent/pipeline/harness.h"
#include "tests/agent/server/cluster.h"

// The coordinator's store is lost or replaced by an older copy: real binaries with a trainer at the
// socket. Shards of an earlier life must never count as shards of the current one.

namespace holdfast::agent {
namespace {

namespace fs = std::filesystem;
constexpr uint64_t kTensorBytes = 300'000;

class LivesTest : public ::testing::Test {
 protected:
  void Start() {
    ASSERT_TRUE(cluster_.StartCoordinator().ok());
    ASSERT_TRUE(cluster_.StartAgent(0).ok());
  }
  Result<TestTrainer> Connect(const std::string& run_id) {
    TestTrainer::Options options;
    options.run_id = run_id;
    Result<TestTrainer> trainer = Fail(UnavailableError("not tried"));
    Eventually([&] {
      trainer = TestTrainer::Connect(cluster_.Socket(0), options);
      return trainer || trainer.error().code() != ErrorCode::kUnavailable;
    });
    return trainer;
  }
  /// Saves steps `first` to `last`, waits until each is on disk, and sends Goodbye.
  VersionId Train(const std::string& run_id, uint64_t first, uint64_t last) {
    auto trainer = Connect(run_id);
    if (!trainer) {
      ADD_FAILURE() << trainer.error().ToString();
      return {};
    }
    for (uint64_t step = first; step <= last; ++step) {
      auto saved = trainer->Save(step, kTensorBytes);
      EXPECT_TRUE(saved) << saved.error().ToString();
      EXPECT_TRUE(trainer->AwaitNotice(NoticeKind::kCommitted, step, Tier::kDisk))
          << cluster_.AgentLog(0);
    }
    const VersionId version = trainer->Version(last);
    Goodbye(*trainer);
    return version;
  }
  static void Goodbye(TestTrainer& trainer) {
    MessageHeader goodbye{.type = MessageType::kGoodbye};
    EXPECT_TRUE(trainer.SendRaw(goodbye).ok());
    EXPECT_TRUE(trainer.AwaitClosed());
  }
  void ExpectRestored(const std::string& run_id, VersionId version) {
    auto trainer = Connect(run_id);
    ASSERT_TRUE(trainer) << trainer.error().ToString();
    auto found = trainer->FindRestore({}, 30'000);
    ASSERT_TRUE(found) << found.error().ToString();
    ASSERT_EQ(found->code, 0U) << GetText(found->text);
    ASSERT_EQ((VersionId{Incarnation{found->incarnation}, Step{found->step}}), version);
    const auto image = MakeImage({"job", version, Rank{0}, 1}, kTensorBytes);
    ASSERT_EQ(found->image_bytes, image.size());
    EXPECT_TRUE(std::equal(image.begin(), image.end(), trainer->slot(found->slot).begin()));
    Goodbye(*trainer);
  }
  void StopCoordinator() {
    cluster_.coordinator().Signal(SIGTERM);
    cluster_.coordinator().Wait(10'000);
  }
  coordinator::GetStatusReply GetStatus() {
    coordinator::GetStatusReply reply;
    grpc::ClientContext context;
    cluster_.Control()->GetStatus(&context, {}, &reply);
    return reply;
  }
  coordinator::AdoptReply Adopt(bool dry_run) {
    coordinator::AdoptRequest request;
    request.set_dry_run(dry_run);
    coordinator::AdoptReply reply;
    grpc::ClientContext context;
    EXPECT_TRUE(cluster_.Control()->Adopt(&context, request, &reply).ok());
    return reply;
  }
  /// Waits until the node is attached again.
  bool AwaitNode() {
    return Eventually([&] {
      const auto status = GetStatus();
      return status.nodes_size() == 1 && status.nodes(0).alive();
    });
  }
  std::string backup() const { return cluster_.root() + "/backup"; }
  void BackUp() {
    const fs::path bin = fs::path(cluster_.AgentArgs(0, {})[0]).parent_path();
    auto made = Program::Start(
        {bin / "holdfast", "--endpoint", "unix:" + cluster_.root() + "/c.sock", "backup", backup()},
        {}, cluster_.root() + "/backup.log");
    ASSERT_TRUE(made);
    ASSERT_EQ(made->Wait(20'000), 0) << ReadText(cluster_.root() + "/backup.log");
  }
  void RestoreBackup() {
    StopCoordinator();
    fs::remove_all(store());
    fs::copy(backup(), store(), fs::copy_options::recursive);
    ASSERT_TRUE(cluster_.StartCoordinator().ok());
    ASSERT_TRUE(AwaitNode());
  }
  std::string store() const { return cluster_.root() + "/c"; }

  TestCluster cluster_;
};

TEST_F(LivesTest, VersionsOfALostStoreAreNotRestored) {
  Start();
  Train("a", 101, 104);
  StopCoordinator();
  fs::remove_all(store());
  cluster_.agent(0).Signal(SIGTERM);
  cluster_.agent(0).Wait(10'000);
  Start();
  const VersionId last = Train("b", 1, 3);
  EXPECT_EQ(last.incarnation.value, 2U) << "above the node's incarnations of the earlier life";
  // The node's inventory lists all its versions.
  StopCoordinator();
  ASSERT_TRUE(cluster_.StartCoordinator().ok());
  ASSERT_TRUE(AwaitNode());
  ExpectRestored("c", last);
  const auto status = GetStatus();
  ASSERT_EQ(status.nodes(0).other_lives_size(), 1);
  EXPECT_EQ(status.nodes(0).other_lives(0).newest().step(), 104U);
}

// All slots hold shards of the earlier life, and the agent keeps running.
TEST_F(LivesTest, ARunningAgentAcceptsANewStoreAndFreesItsMemory) {
  Start();
  {
    auto trainer = Connect("a");
    ASSERT_TRUE(trainer) << trainer.error().ToString();
    for (uint64_t step = 1; step <= 3; ++step) {
      ASSERT_TRUE(trainer->Save(step, kTensorBytes));
      ASSERT_TRUE(trainer->AwaitNotice(NoticeKind::kCommitted, step, Tier::kMemory));
    }
    StopCoordinator();
    fs::remove_all(store());
    ASSERT_TRUE(cluster_.StartCoordinator().ok());
    EXPECT_TRUE(trainer->AwaitClosed(30'000)) << "the Welcome of the earlier life is void";
  }
  ASSERT_TRUE(AwaitNode());
  const VersionId last = Train("b", 1, 8);
  EXPECT_EQ(last.step.value, 8U);
  ExpectRestored("c", last);
}

TEST_F(LivesTest, AdoptMakesALostStoresVersionsRestorable) {
  Start();
  const VersionId last = Train("a", 101, 104);
  StopCoordinator();
  fs::remove_all(store());
  ASSERT_TRUE(cluster_.StartCoordinator().ok());
  ASSERT_TRUE(AwaitNode());
  const auto would = Adopt(/*dry_run=*/true);
  ASSERT_GE(would.versions_size(), 1);
  EXPECT_EQ(would.versions(0).version().step(), 104U);
  EXPECT_EQ(would.versions(0).why_not(), "");
  EXPECT_EQ(GetStatus().jobs_size(), 0) << "a dry run changes nothing";
  EXPECT_EQ(Adopt(/*dry_run=*/false).versions_size(), would.versions_size());
  EXPECT_EQ(Adopt(/*dry_run=*/true).versions_size(), 0) << "nothing is left";
  ExpectRestored("b", last);
  // The version is in the store from now on.
  StopCoordinator();
  ASSERT_TRUE(cluster_.StartCoordinator().ok());
  ASSERT_TRUE(AwaitNode());
  ExpectRestored("c", last);
}

// The store's files were copied by hand. Versions that the copy does not contain are quarantined.
TEST_F(LivesTest, AnOlderCopyOfTheStoreReusesNoIncarnation) {
  Start();
  const VersionId known = Train("a", 1, 2);
  StopCoordinator();
  fs::copy(store(), cluster_.root() + "/copy", fs::copy_options::recursive);
  ASSERT_TRUE(cluster_.StartCoordinator().ok());
  ASSERT_TRUE(AwaitNode());
  Train("b", 3, 4);
  StopCoordinator();
  fs::remove_all(store());
  fs::copy(cluster_.root() + "/copy", store(), fs::copy_options::recursive);
  ASSERT_TRUE(cluster_.StartCoordinator().ok());
  ASSERT_TRUE(AwaitNode());
  const auto status = GetStatus();
  ASSERT_EQ(status.jobs_size(), 1);
  EXPECT_EQ(status.jobs(0).restorable().incarnation(), known.incarnation.value);
  EXPECT_EQ(status.jobs(0).restorable().step(), known.step.value);
  ASSERT_EQ(status.nodes(0).other_lives_size(), 1);
  EXPECT_EQ(status.nodes(0).other_lives(0).newest().incarnation(), 2U);
  const VersionId last = Train("c", 5, 6);
  EXPECT_EQ(last.incarnation.value, 3U) << "no incarnation is used twice";
  ExpectRestored("d", last);
}

TEST_F(LivesTest, AnOlderEpochOfTheSameLifeIsRefusedAlsoAfterARestartOfTheAgent) {
  Start();
  Train("a", 1, 2);
  StopCoordinator();
  fs::copy(store(), cluster_.root() + "/copy", fs::copy_options::recursive);
  for (int start = 0; start < 2; ++start) {
    ASSERT_TRUE(cluster_.StartCoordinator().ok());
    ASSERT_TRUE(AwaitNode());
    StopCoordinator();
  }
  cluster_.agent(0).Signal(SIGTERM);
  cluster_.agent(0).Wait(10'000);
  fs::remove_all(store());
  fs::copy(cluster_.root() + "/copy", store(), fs::copy_options::recursive);
  Start();
  ASSERT_TRUE(Eventually([&] { return GetStatus().refused_size() == 1; }));
  const auto status = GetStatus();
  EXPECT_EQ(status.refused(0).node(), "n0");
  EXPECT_NE(status.refused(0).why().find("docs/backup.md"), std::string::npos);
  for (const auto& node : status.nodes()) EXPECT_FALSE(node.alive());
}

// docs/backup.md, step by step: a backup of a running coordinator, the loss, the restore.
TEST_F(LivesTest, ABackupIsRestoredAsDocumented) {
  Start();
  const VersionId backed_up = Train("a", 1, 2);
  const uint64_t life = GetStatus().life();
  ASSERT_NO_FATAL_FAILURE(BackUp());
  const VersionId lost = Train("a2", 3, 4);
  ASSERT_NO_FATAL_FAILURE(RestoreBackup());
  const auto status = GetStatus();
  EXPECT_NE(status.life(), life);
  ASSERT_EQ(status.jobs_size(), 1);
  EXPECT_EQ(status.jobs(0).restorable().step(), backed_up.step.value);
  // Versions newer than the backup are complete on the node, and `holdfast adopt` takes them.
  const VersionId next = Train("b", 10, 10);
  EXPECT_GT(next.incarnation, lost.incarnation);
  bool taken = false;
  const auto adopted = Adopt(/*dry_run=*/false);
  for (const auto& one : adopted.versions()) {
    taken = taken || (one.version().step() == lost.step.value && one.why_not().empty());
  }
  EXPECT_TRUE(taken);
  ExpectRestored("c", next);
}

// The backup is older than the newest versions: these are quarantined, and restored once adopted.
TEST_F(LivesTest, AnOutdatedBackupLosesNoVersion) {
  Start();
  const VersionId backed_up = Train("a", 1, 2);
  ASSERT_NO_FATAL_FAILURE(BackUp());
  const VersionId newest = Train("a2", 3, 4);
  ASSERT_NO_FATAL_FAILURE(RestoreBackup());
  const auto status = GetStatus();
  ASSERT_EQ(status.jobs_size(), 1);
  EXPECT_EQ(status.jobs(0).restorable().step(), backed_up.step.value);
  ASSERT_EQ(status.nodes(0).other_lives_size(), 1);
  EXPECT_EQ(status.nodes(0).other_lives(0).newest().step(), newest.step.value);
  Adopt(/*dry_run=*/false);
  const auto after = GetStatus();
  ASSERT_EQ(after.jobs_size(), 1);
  EXPECT_EQ(after.jobs(0).restorable().step(), newest.step.value);
  EXPECT_EQ(after.nodes(0).other_lives_size(), 0);
  ExpectRestored("b", newest);
}

/// Runs `work` in a child process with one thread and returns the exit code.
int InAnotherProcess(const std::function<bool()>& work) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(work() && !::testing::Test::HasFailure() ? 0 : 1);
  int status = -1;
  ::waitpid(child, &status, 0);
  return status;
}

// A requeued job: the launcher uses the run ID of the first start for every start.
TEST_F(LivesTest, TheSameRunIdContinuesWhereItStopped) {
  Start();
  ASSERT_EQ(InAnotherProcess([&] { return Train("slurm-7", 1, 5).incarnation.value == 1; }), 0);
  ASSERT_EQ(InAnotherProcess([&] {
              ExpectRestored("slurm-7", {Incarnation{1}, Step{5}});
              return Train("slurm-7", 6, 7).incarnation.value == 2;
            }),
            0)
      << cluster_.AgentLog(0);
  ASSERT_EQ(InAnotherProcess([&] {
              ExpectRestored("slurm-7", {Incarnation{2}, Step{7}});
              return Train("slurm-7", 8, 8).incarnation.value == 3;
            }),
            0)
      << cluster_.AgentLog(0);
}

// A process that closes its client and opens another one is one start; it can roll back.
TEST_F(LivesTest, AnotherClientOfTheSameProcessIsTheSameStart) {
  Start();
  const VersionId first = Train("one", 1, 5);
  EXPECT_EQ(first.incarnation.value, 1U);
  ExpectRestored("one", first);
  EXPECT_EQ(Train("one", 6, 6).incarnation.value, 1U);
}

}  // namespace
}  // namespace holdfast::agent
