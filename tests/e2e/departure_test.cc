// Planned departures of a node: the agent's grace at SIGTERM, and `holdfast drain`.

#include <fmt/format.h>
#include <sys/mount.h>

#include <csignal>
#include <nlohmann/json.hpp>
#include <random>

#include "testing/cluster/observer.h"
#include "testing/cluster/training.h"
#include "tests/e2e/cluster_test.h"
#include "tests/e2e/protected_cluster.h"

namespace holdfast::local {
namespace {
using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr milliseconds kTimeout(120'000);

/// HOLDFAST_PHASES: how often the node of a job departs.
int Phases() {
  const char* value = std::getenv("HOLDFAST_PHASES");
  return value == nullptr ? 3 : std::stoi(value);
}

class GraceTest : public ClusterTest {
 protected:
  void SetUp() override {
    options_.nodes = 4;
    options_.arena_bytes = 64ULL << 20;
    options_.disk_every = 1'000'000;  // so that only departures write versions to disk
    StartServers();
  }
  /// Starts all servers again after a loss of all memory.
  void StartAgain() {
    ASSERT_TRUE(cluster_->StartCoordinator().ok());
    for (int node = 0; node < options_.nodes; ++node) {
      ASSERT_TRUE(cluster_->StartAgent(node).ok());
    }
    for (int node = 0; node < options_.nodes; ++node) {
      ASSERT_TRUE(cluster_->AwaitAgent(node).ok());
    }
  }
};

TEST_F(GraceTest, ANodeThatIsStoppedAtAnyTimeLosesAtMostOneStep) {
  constexpr uint64_t kStepMs = 30;
  TrainingOptions training;
  training.steps = 20 * static_cast<uint64_t>(Phases()) + 20;
  training.step_sleep_ms = kStepMs;
  Training job(&*cluster_, training);
  ASSERT_TRUE(job.Start().ok());
  const unsigned seed = std::random_device()();
  std::mt19937 random(seed);
  std::string table = fmt::format("seed {}\n", seed);
  uint64_t restored = 0;
  for (int phase = 0; phase < Phases(); ++phase) {
    ASSERT_TRUE(job.AwaitStep(restored + 6, kTimeout)) << table << job.LogTail();
    const int node = static_cast<int>(random() % 4);
    const auto delay = milliseconds(random() % (4 * kStepMs));
    std::this_thread::sleep_for(delay);
    const auto begun = std::chrono::steady_clock::now();
    job.rank(node).Signal(SIGTERM);
    cluster_->agent(node).Signal(SIGTERM);
    const auto ended = cluster_->agent(node).WaitFor(kTimeout);
    ASSERT_TRUE(ended.has_value()) << "the agent does not end";
    EXPECT_EQ(*ended, 0);
    const auto took =
        std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - begun);
    const uint64_t newest = job.newest_step();
    const uint64_t own = job.newest_step_of(node);
    // The memory of all nodes is lost, so that only the disks have a version.
    job.KillAll();
    cluster_->KillEverything();
    ASSERT_NO_FATAL_FAILURE(StartAgain());
    ASSERT_TRUE(job.Start().ok());
    ASSERT_TRUE(WaitUntil([&] { return job.restored().size() == 4; }, kTimeout)) << job.LogTail();
    restored = job.restored()[0].step;
    // What the rank of the node had finished: until its copy of a step has ended, the trainer may
    // take part in the next step, but not finish it.
    const auto lost = static_cast<int64_t>(own) - static_cast<int64_t>(restored);
    table += fmt::format(
        "phase {:2}: n{} after {:3} ms: step {:3} (any rank: {:3}), restored {:3}, lost {:2}, "
        "{} ms\n",
        phase, node, delay.count(), own, newest, restored, lost, took.count());
    EXPECT_LE(lost, 1) << table << ReadAll(cluster_->AgentLog(node));
    EXPECT_LE(newest, restored + 2) << table;
    EXPECT_LT(took, milliseconds(10'000)) << table;
  }
  if (const char* file = std::getenv("HOLDFAST_PHASES_TABLE")) {
    std::ofstream(file, std::ios::app) << table;
  }
  const Status finished = job.AwaitFinish(kTimeout);
  ASSERT_TRUE(finished.ok()) << finished.ToString() << job.LogTail();
  training.step_sleep_ms = 0;
  const auto expected = UninterruptedParameters(training, kTimeout);
  const auto parameters = job.FinalParameters();
  ASSERT_TRUE(expected.has_value() && parameters.has_value());
  EXPECT_TRUE(*parameters == *expected) << "the parameters differ\n" << table;
}

TEST_F(GraceTest, AnAgentWaitsNeitherForAMissingCoordinatorNorAfterASecondSignal) {
  TrainingOptions training;
  training.steps = 1'000;
  training.step_sleep_ms = 20;
  Training job(&*cluster_, training);
  ASSERT_TRUE(job.Start().ok());
  ASSERT_TRUE(job.AwaitStep(5, kTimeout)) << job.LogTail();
  const auto stop = [&](int node, bool twice) {
    const auto begun = std::chrono::steady_clock::now();
    cluster_->agent(node).Signal(SIGTERM);
    if (twice) cluster_->agent(node).Signal(SIGTERM);
    EXPECT_TRUE(cluster_->agent(node).WaitFor(kTimeout).has_value());
    return std::chrono::steady_clock::now() - begun;
  };
  EXPECT_LT(stop(3, /*twice=*/false), milliseconds(10'000));
  EXPECT_THAT(ReadAll(cluster_->AgentLog(3)), HasSubstr("Departed"));
  cluster_->coordinator().Kill();
  job.KillAll();
  EXPECT_LT(stop(0, /*twice=*/false), milliseconds(10'000));
  EXPECT_LT(stop(1, /*twice=*/true), milliseconds(3'000));
}

class DepartureTest : public ProtectedCluster {
 protected:
  static constexpr int kNodes = 3;
  static constexpr milliseconds kGraceMax{20'000};

  /// Sends SIGTERM to the agent of node 0, and waits for the agent's end.
  void Depart() {
    const auto begun = std::chrono::steady_clock::now();
    cluster_->agent(0).Signal(SIGTERM);
    const auto ended = cluster_->agent(0).WaitFor(kTimeout);
    ASSERT_TRUE(ended.has_value()) << "the agent does not end";
    EXPECT_EQ(*ended, 0);
    EXPECT_LT(std::chrono::steady_clock::now() - begun, kGraceMax);
  }
  void LoseMemory() {
    job_->Close();
    cluster_->KillEverything();
  }
  void StartAgain(const std::vector<int>& nodes) {
    ASSERT_TRUE(cluster_->StartCoordinator().ok());
    for (int node : nodes) ASSERT_TRUE(cluster_->StartAgent(node).ok());
    for (int node : nodes) AwaitAgent(node);
  }
  /// Saves until a version newer than `than` is committed at the tier, and returns it.
  VersionId SaveUntilCommitted(v1::Tier tier, std::optional<VersionId> than = std::nullopt) {
    const bool committed = job_->SaveUntil(
        [&] {
          const auto newest = job_->Newest(tier);
          return newest && (!than || *newest > *than);
        },
        kTimeout);
    EXPECT_TRUE(committed) << Evidence();
    return job_->Newest(tier).value_or(VersionId{});
  }
};

TEST_F(DepartureTest, TheNewestVersionIsAtTierRemoteWithinTheGrace) {
  const std::string remote = options_.root + "/remote";
  std::filesystem::create_directories(remote);
  options_.agent_settings.push_back("remote.url=file://" + remote);
  // Only departures write versions to disk, and copies are made from there.
  ASSERT_NO_FATAL_FAILURE(Start(kNodes, 1, /*spares=*/kNodes));
  VersionId promised = SaveUntilCommitted(v1::Tier::kMemory);
  for (int i = 0; i < 5; ++i) promised = SaveUntilCommitted(v1::Tier::kMemory, promised);
  EXPECT_FALSE(job_->Newest(v1::Tier::kRemote)) << Evidence();
  ASSERT_NO_FATAL_FAILURE(Depart());
  EXPECT_THAT(AgentLog(0), HasSubstr("Departed"));
  EXPECT_THAT(AgentLog(0), ::testing::Not(HasSubstr("NotCopied"))) << AgentLog(0);
  // All nodes are lost with their disks. New nodes have the version from tier remote.
  LoseMemory();
  for (int node = 0; node < kNodes; ++node) cluster_->DestroyNode(node);
  const std::vector<int> nodes{kNodes, kNodes + 1, kNodes + 2};
  ASSERT_NO_FATAL_FAILURE(StartAgain(nodes));
  const SavingJob::Restored restored = ExpectBack(promised, {}, nodes);
  for (v1::Tier tier : restored.tiers) EXPECT_EQ(tier, v1::Tier::kRemote);
}

TEST_F(DepartureTest, AnAgentEndsWithoutACopyThatFailsAndTheLogNamesTheVersion) {
  const std::string remote = options_.root + "/remote";
  std::filesystem::create_directories(remote);
  options_.agent_settings.push_back("remote.url=file://" + remote);
  ASSERT_NO_FATAL_FAILURE(Start(kNodes, 1));
  const VersionId saved = SaveUntilCommitted(v1::Tier::kMemory);
  std::filesystem::remove_all(remote);
  std::ofstream(remote) << "not a directory";
  ASSERT_NO_FATAL_FAILURE(Depart());
  EXPECT_THAT(AgentLog(0), HasSubstr("Departed"));
  EXPECT_THAT(AgentLog(0), HasSubstr("NotCopied job=saved disk=1-"));
  EXPECT_THAT(AgentLog(0), HasSubstr(" remote=0-0 "));
  EXPECT_GE(job_->Newest(v1::Tier::kDisk).value_or(VersionId{}), saved);
}

TEST_F(DepartureTest, AFullDiskLosesNothingOlderAndTheLogNamesWhatIsInMemoryOnly) {
  if (::getuid() != 0) GTEST_SKIP() << "only root can mount";
  const std::string disk = options_.root + "/disk";
  std::filesystem::create_directories(disk);
  if (::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=64m") != 0) {
    GTEST_SKIP() << "this machine refuses mounts";
  }
  options_.data_dir_of[0] = disk + "/data";
  options_.disk_every = 1;
  ASSERT_NO_FATAL_FAILURE(Start(kNodes, 1));
  SaveUntilCommitted(v1::Tier::kDisk);
  {
    std::ofstream filler(disk + "/filler", std::ios::binary);
    const std::string block(1 << 20, 'x');
    while (filler.write(block.data(), static_cast<std::streamsize>(block.size())).flush()) {
    }
  }
  // What was being written may still fit; then nothing does.
  ASSERT_TRUE(job_->SaveUntil(
      [&] { return AgentLog(0).find("No space left") != std::string::npos; }, kTimeout))
      << Evidence();
  const VersionId full_at = job_->Newest(v1::Tier::kDisk).value();
  const VersionId newest = SaveUntilCommitted(v1::Tier::kMemory, full_at);
  ASSERT_NO_FATAL_FAILURE(Depart());
  const VersionId on_disk = job_->Newest(v1::Tier::kDisk).value();
  EXPECT_GE(on_disk, full_at);
  const std::string log = AgentLog(0);
  const size_t at = log.find("NotFlushed");
  ASSERT_NE(at, std::string::npos) << log;
  const std::string line = log.substr(at, log.find('\n', at) - at);
  EXPECT_THAT(line, HasSubstr("job=saved"));
  EXPECT_THAT(line, HasSubstr(fmt::format("disk={}", ToString(on_disk)))) << ToString(newest);
  EXPECT_THAT(line, HasSubstr("disk full: "));
  EXPECT_THAT(line, HasSubstr("No space left"));
  LoseMemory();
  ASSERT_NO_FATAL_FAILURE(StartAgain({0, 1, 2}));
  // A newer version may come back, too: from the disks of the other nodes and their parity.
  ExpectBack(on_disk, {});
  job_.reset();
  cluster_.reset();
  EXPECT_EQ(::umount(disk.c_str()), 0);
}

class DrainTest : public ProtectedCluster {
 protected:
  /// Four nodes: ranks run on the first three, and n3 is free.
  void StartThreeOfFour(int disk_every) {
    options_.disk_every = disk_every;
    words_ = 200'000;
    ASSERT_NO_FATAL_FAILURE(Start(3, 1, /*spares=*/1));
    ASSERT_TRUE(cluster_->StartAgent(3).ok());
    AwaitAgent(3);
  }
  Cluster::CliResult Cli(const std::vector<std::string>& arguments) {
    auto result = cluster_->Cli(arguments, kTimeout);
    return result ? *result : Cluster::CliResult{-1, "", result.error().ToString()};
  }
  bool AwaitStatus(const std::string& text) {
    return WaitUntil([&] { return Cli({"status"}).out.find(text) != std::string::npos; }, kTimeout);
  }
};

TEST_F(DrainTest, AFinishedJobSurvivesADrainedNodeAndOneMore) {
  ASSERT_NO_FATAL_FAILURE(StartThreeOfFour(1));
  const VersionId promised = SaveUntilProtected();
  job_->Close();
  EXPECT_EQ(Cli({"drain", "n9"}).exit_code, 4);
  const Cluster::CliResult drained = Cli({"drain", "n1", "--wait", "60s", "--why", "new fan"});
  ASSERT_EQ(drained.exit_code, 0) << drained.out << drained.errors << Evidence();
  EXPECT_THAT(drained.out, HasSubstr("\nsafe to stop n1")) << drained.out;
  EXPECT_THAT(Cli({"status"}).out, HasSubstr("NODE_DRAINED"));
  // The drain outlives the coordinator.
  cluster_->coordinator().Kill();
  ASSERT_TRUE(cluster_->StartCoordinator().ok());
  for (int node = 0; node < 4; ++node) AwaitAgent(node);
  constexpr int kUnreachable = 5;
  ASSERT_TRUE(WaitUntil([&] { return Cli({"status"}).exit_code != kUnreachable; }, kTimeout));
  const Cluster::CliResult again = Cli({"drain", "n1", "--check", "--wait", "60s", "-o", "json"});
  EXPECT_EQ(again.exit_code, 0) << again.out << again.errors;
  const auto document = nlohmann::json::parse(again.out, nullptr, false);
  ASSERT_TRUE(document.is_object()) << again.out;
  EXPECT_EQ(document["draining"], true);
  EXPECT_EQ(document["why"], "new fan");
  EXPECT_EQ(document["safe_to_stop"], true);
  EXPECT_THAT(Cli({"audit"}).out, HasSubstr("Drain"));

  // All redundancy is left: another node may be lost with it.
  cluster_->DestroyNode(1);
  cluster_->DestroyNode(0);
  ASSERT_TRUE(cluster_->StartAgent(0).ok());
  AwaitAgent(0);
  ExpectBack(promised, {}, {0, 3, 2});
  EXPECT_EQ(Cli({"drain", "n1", "--undo"}).exit_code, 0);
  EXPECT_THAT(Cli({"status"}).out, ::testing::Not(HasSubstr("NODE_DRAINED")));
  EXPECT_THAT(Cli({"nodes"}).out, HasSubstr("n1"));

  // The machine of n1 is gone for good.
  const Cluster::CliResult up = Cli({"drain", "n0", "--remove"});
  EXPECT_EQ(up.exit_code, 1) << up.out;
  EXPECT_THAT(up.errors, HasSubstr("node n0 is up"));
  Cluster::CliResult removed;
  const bool done = WaitUntil(
      [&] {
        removed = Cli({"drain", "n1", "--remove"});
        return removed.errors.find("just started") == std::string::npos;
      },
      kTimeout);
  EXPECT_TRUE(done);
  EXPECT_EQ(removed.exit_code, 0) << removed.out << removed.errors;
  EXPECT_THAT(removed.out, HasSubstr("removed n1"));
  cluster_->coordinator().Kill();
  ASSERT_TRUE(cluster_->StartCoordinator().ok());
  EXPECT_TRUE(AwaitStatus("3 of 3 nodes up")) << Cli({"status"}).out;
  EXPECT_THAT(Cli({"nodes"}).out, ::testing::Not(HasSubstr("n1")));
  // Another machine has its name.
  ASSERT_TRUE(cluster_->StartAgent(1).ok());
  EXPECT_TRUE(AwaitStatus("4 of 4 nodes up")) << Cli({"status"}).out;
  EXPECT_THAT(Cli({"status"}).out, ::testing::Not(HasSubstr("NODE_DRAINED")));
}

TEST_F(DrainTest, ARunningJobKeepsItsNewestVersionWithoutTheDrainedNode) {
  ASSERT_NO_FATAL_FAILURE(StartThreeOfFour(1'000'000));
  SaveUntilProtected();
  Cluster::CliResult strict;
  // The newest versions may still be in memory only. Their parity follows without another save.
  const bool explained = WaitUntil(
      [&] {
        strict = Cli({"drain", "n1"});
        return strict.out.find("run the job on other nodes") != std::string::npos;
      },
      kTimeout);
  EXPECT_TRUE(explained) << strict.out << Evidence();
  EXPECT_EQ(strict.exit_code, 2) << strict.out;
  EXPECT_THAT(strict.out, HasSubstr("not safe to stop n1"));
  const VersionId promised = SaveUntilProtected(job_->Newest(v1::Tier::kPeer));
  const Cluster::CliResult drained = Cli({"drain", "n1", "--accept-less", "--wait", "60s"});
  ASSERT_EQ(drained.exit_code, 0) << drained.out << drained.errors << Evidence();
  EXPECT_THAT(drained.out, HasSubstr("its ranks run on the node"));
  cluster_->DestroyNode(1);
  ExpectBack(promised, {}, {0, 3, 2});
}

class DrainWithoutGroupsTest : public DrainTest {
 protected:
  /// Ranks run on all nodes but the last one, and no parity is kept.
  void StartWithoutGroups(int ranks, int disk_every) {
    options_.disk_every = disk_every;
    options_.nodes = ranks + 1;
    options_.agent_settings.push_back("peers.enabled=false");
    ASSERT_NO_FATAL_FAILURE(StartServers());
    job_.emplace(*cluster_, ranks, words_);
    const Status opened = job_->Open();
    ASSERT_TRUE(opened.ok()) << opened.ToString();
  }
  VersionId SaveUntilCommitted(v1::Tier tier) {
    const bool committed = job_->SaveUntil([&] { return job_->Newest(tier); }, kTimeout);
    EXPECT_TRUE(committed) << Evidence();
    return job_->Newest(tier).value_or(VersionId{});
  }
};

TEST_F(DrainWithoutGroupsTest, AFinishedJobSurvivesTheLossOfTheDrainedNode) {
  ASSERT_NO_FATAL_FAILURE(StartWithoutGroups(/*ranks=*/2, /*disk_every=*/1));
  const VersionId promised = SaveUntilCommitted(v1::Tier::kDisk);
  job_->Close();
  EXPECT_THAT(Cli({"drain", "n1", "--check"}).out, HasSubstr("drain the node"));
  const Cluster::CliResult drained = Cli({"drain", "n1", "--wait", "60s"});
  ASSERT_EQ(drained.exit_code, 0) << drained.out << drained.errors << Evidence();
  EXPECT_THAT(AgentLog(0) + AgentLog(2), HasSubstr("from=\"on node n1\""));
  cluster_->DestroyNode(1);
  ExpectBack(promised, {}, {0, 2});
}

TEST_F(DrainWithoutGroupsTest, ARunningJobOfOneRankLosesItsNodeAndKeepsWhatTheDrainNames) {
  ASSERT_NO_FATAL_FAILURE(StartWithoutGroups(/*ranks=*/1, /*disk_every=*/1'000'000));
  const VersionId saved = SaveUntilCommitted(v1::Tier::kMemory);
  const Cluster::CliResult drained = Cli({"drain", "n0"});
  EXPECT_EQ(drained.exit_code, 2) << drained.out;
  EXPECT_THAT(drained.out, HasSubstr("saved: not safe: version"));
  VersionId survives;
  const auto copied = [&] {
    const Cluster::CliResult shown = Cli({"drain", "n0", "--check", "-o", "json"});
    const auto document = nlohmann::json::parse(shown.out, nullptr, false);
    if (!document.is_object()) return false;
    survives =
        ParseVersionId(document["jobs"][0]["survives"].get<std::string>()).value_or(VersionId{});
    return survives >= saved;
  };
  ASSERT_TRUE(job_->SaveUntil(copied, kTimeout)) << Evidence();
  cluster_->DestroyNode(0);
  ExpectBack(survives, {}, {1});
}

}  // namespace
}  // namespace holdfast::local
