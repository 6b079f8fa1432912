// The previous version of some parts with this version of the others: mixed nodes, a rolling
// upgrade and its reversal while a job saves, the CLI, the client library and the data on disk.

#include <dlfcn.h>
#include <unistd.h>

#include <climits>
#include <csignal>

#include "base/certificates/authority.h"
#include "base/certificates/durable_file.h"
#include "base/clock.h"
#include "tests/e2e/protected_cluster.h"

namespace holdfast::local {
namespace {
using ::testing::HasSubstr;

/// The folder of the previous version's programs. run.sh sets it.
std::string PreviousPrograms() {
  const char* folder = std::getenv("HOLDFAST_PREVIOUS_PROGRAMS");
  return folder == nullptr ? "" : folder;
}

std::string RealPath(const std::string& path) {
  char real[PATH_MAX];
  return ::realpath(path.c_str(), real) == nullptr ? "" : real;
}

/// Ranks use the previous library exactly where run.sh has --previous-trainers.
class CompatTest : public ProtectedCluster {
 protected:
  static constexpr int kNodes = 3;

  void SetUp() override {
    ASSERT_FALSE(PreviousPrograms().empty()) << "start this program with tests/compat/run.sh";
    Dl_info library;
    ASSERT_NE(::dladdr(reinterpret_cast<void*>(&holdfast_open), &library), 0);
    const char* wanted = std::getenv("HOLDFAST_PREVIOUS_LIBRARY");
    const bool previous = RealPath(library.dli_fname).find("/previous/") != std::string::npos;
    ASSERT_EQ(previous, wanted != nullptr) << library.dli_fname;
    ProtectedCluster::SetUp();
    words_ = 64 << 10;
    options_.disk_every = 1;
  }

  void UsePreviousAgents(const std::vector<int>& nodes) {
    options_.agent_programs_of.clear();
    for (int node : nodes) options_.agent_programs_of[node] = PreviousPrograms();
  }
  void UsePreviousCoordinator(bool previous) {
    options_.coordinator_programs = previous ? PreviousPrograms() : "";
  }
  /// Makes an authority and a certificate for each server, and lets the coordinator listen at TCP,
  /// since the previous agents use TLS at a unix socket, too.
  void UseCertificates() {
    namespace c = certificates;
    const int64_t now = Clock::Real().WallNanos() / 1'000'000'000;
    const auto authority = c::Authority::Create("local", now);
    ASSERT_TRUE(authority);
    std::filesystem::create_directories(options_.root);
    const auto write = [&](const std::string& name, const std::string& text) {
      const std::string path = options_.root + "/" + name + ".pem";
      EXPECT_TRUE(c::ReplaceFile(path, text, 0600).ok());
      return path;
    };
    const std::string ca = write("ca", authority->certificate().ToPem());
    const auto issue = [&](const std::string& role, const std::string& name) {
      const auto key = c::PrivateKey::Generate();
      const auto made = authority->Sign(
          key->get(), {"spiffe://local/" + role + "/" + name, {"127.0.0.1"}, now - 60, now + 3600});
      EXPECT_TRUE(made);
      return made ? write(name, made->ToPem() + key->ToPem()) : "";
    };
    const auto settings = [&](const std::string& file) -> std::vector<std::string> {
      return {"tls.ca=" + ca, "tls.cert=" + file, "tls.key=" + file};
    };
    for (int node = 0; node < kNodes; ++node) {
      options_.agent_settings_of[node] = settings(issue("agent", "n" + std::to_string(node)));
    }
    options_.coordinator_settings = settings(issue("coordinator", "c"));
    options_.coordinator_settings.emplace_back("cluster=local");
    const std::string operator_file = issue("operator", "admin");
    options_.cli_options = {"--tls-ca",    ca,          "--tls-cert",
                            operator_file, "--tls-key", operator_file};
    // Below the ports that the system gives to clients.
    options_.endpoint = "127.0.0.1:" + std::to_string(10'000 + ::getpid() % 20'000);
  }
  /// Starts the cluster, whose node 0 is of the previous version. Loses node 0 with its data, and
  /// then node 1, and expects the shards of each one decoded.
  void LoseOneNodeOfEachVersion() {
    ASSERT_NO_FATAL_FAILURE(Start(kNodes, 1));
    std::optional<VersionId> before;
    for (int lost : {0, 1}) {
      const VersionId promised = SaveUntilProtected(before);
      job_->Close();
      ASSERT_NO_FATAL_FAILURE(Replace(lost));
      before = ExpectBack(promised, {lost}).version;
    }
  }
  /// Whether the process runs the program of that version, at the latest after a while. Just after
  /// its start, it is still a copy of this process.
  static bool Runs(Process& process, bool previous) {
    const auto is_previous = [&] {
      const std::string program = RealPath("/proc/" + std::to_string(process.pid()) + "/exe");
      return program.rfind(RealPath(PreviousPrograms()), 0) == 0;
    };
    return WaitUntil([&] { return is_previous() == previous; }, kTimeout);
  }

  /// Stops the coordinator and starts it with the programs of `options_`.
  void RestartCoordinator() {
    cluster_->Reconfigure(options_);
    cluster_->coordinator().Signal(SIGTERM);
    ASSERT_TRUE(cluster_->coordinator().WaitFor(kTimeout));
    ASSERT_TRUE(cluster_->StartCoordinator().ok());
  }
  /// Stops the agent, whose keeper goes on, and starts it with the programs of `options_`.
  void RestartAgent(int node) {
    cluster_->Reconfigure(options_);
    const pid_t keeper = cluster_->KeeperPid(node);
    cluster_->agent(node).Signal(SIGTERM);
    ASSERT_TRUE(cluster_->agent(node).WaitFor(kTimeout));
    ASSERT_TRUE(cluster_->StartAgent(node).ok());
    AwaitAgent(node);
    EXPECT_EQ(cluster_->KeeperPid(node), keeper) << "the keeper of node " << node;
  }
  /// Replaces coordinator and agents one by one while the job saves. No rank is restarted.
  void UpgradeUnderTheJob(bool to_previous) {
    VersionId newest = SaveUntilProtected();
    UsePreviousCoordinator(to_previous);
    ASSERT_NO_FATAL_FAILURE(RestartCoordinator());
    newest = SaveUntilProtected(newest);
    EXPECT_TRUE(Runs(cluster_->coordinator(), to_previous));
    std::vector<int> previous = to_previous ? std::vector<int>{} : std::vector<int>{0, 1, 2};
    for (int node = 0; node < kNodes; ++node) {
      if (to_previous) previous.push_back(node);
      if (!to_previous) std::erase(previous, node);
      UsePreviousAgents(previous);
      ASSERT_NO_FATAL_FAILURE(RestartAgent(node));
      EXPECT_TRUE(Runs(cluster_->agent(node), to_previous));
      newest = SaveUntilProtected(newest);
    }
  }
  /// Kills agents and keepers, so that only the disks have the versions, and starts all again.
  void LoseMemory() {
    job_->Close();
    for (int node = 0; node < kNodes; ++node) {
      cluster_->agent(node).Kill();
      cluster_->KillKeeper(node);
    }
    cluster_->Reconfigure(options_);
    for (int node = 0; node < kNodes; ++node) {
      ASSERT_TRUE(cluster_->StartAgent(node).ok());
      AwaitAgent(node);
    }
  }
  /// Replaces coordinator and agents by those of one version. They find versions only on the disks.
  void StartAgainFromDisks(bool previous) {
    UsePreviousCoordinator(previous);
    ASSERT_NO_FATAL_FAILURE(RestartCoordinator());
    UsePreviousAgents(previous ? std::vector<int>{0, 1, 2} : std::vector<int>{});
    ASSERT_NO_FATAL_FAILURE(LoseMemory());
  }
  VersionId SaveUntilOnDisk() {
    const bool on_disk =
        job_->SaveUntil([&] { return job_->Newest(v1::Tier::kDisk).has_value(); }, kTimeout);
    EXPECT_TRUE(on_disk) << Evidence();
    return job_->Newest(v1::Tier::kDisk).value_or(VersionId{});
  }
  /// Both versions of the CLI show the job and verify its newest version.
  void ExpectCliWorks() {
    for (const std::string& programs : {std::string(), PreviousPrograms()}) {
      options_.cli_programs = programs;
      cluster_->Reconfigure(options_);
      const auto status = cluster_->Cli({"-o", "json", "status"});
      ASSERT_TRUE(status.has_value());
      EXPECT_THAT(status->out, HasSubstr("\"saved\"")) << programs << status->errors;
      const auto verified = cluster_->Cli({"verify", "saved"});
      ASSERT_TRUE(verified.has_value());
      EXPECT_EQ(verified->exit_code, 0) << programs << verified->out << verified->errors;
    }
  }
};

TEST_F(CompatTest, MixedNodesProtectAndDecodeEachOther) {
  UsePreviousAgents({0});
  ASSERT_NO_FATAL_FAILURE(LoseOneNodeOfEachVersion());
}

TEST_F(CompatTest, MixedNodesWithCertificatesProtectAndDecodeEachOther) {
  UsePreviousAgents({0});
  ASSERT_NO_FATAL_FAILURE(UseCertificates());
  // Between these two, frames have tags; to and from the previous version, TLS encrypts.
  for (int node : {1, 2}) options_.agent_settings_of[node].push_back("peers.encrypt=false");
  ASSERT_NO_FATAL_FAILURE(LoseOneNodeOfEachVersion());
}

// The previous version has no relays: to its agents, a relay is one more coordinator.
TEST_F(CompatTest, PreviousAgentsAttachThroughARelayAndLeaveALostOne) {
  UsePreviousAgents({0, 1});
  options_.relays = 1;
  ASSERT_NO_FATAL_FAILURE(Start(kNodes, 1));
  VersionId newest = SaveUntilProtected();
  const auto attached = [&](const std::string& through) {
    int count = 0;
    const std::string log = ReadAll(cluster_->CoordinatorLog());
    for (int node = 0; node < kNodes; ++node) {
      const size_t at = log.rfind(" NodeAttaching node=n" + std::to_string(node) + " ");
      if (at == std::string::npos) continue;
      const std::string line = log.substr(at, log.find('\n', at) - at);
      count += line.find(through) != std::string::npos;
    }
    return count;
  };
  EXPECT_EQ(attached(cluster_->RelayEndpoint(0)), kNodes);
  for (int node = 0; node < kNodes; ++node) EXPECT_TRUE(Runs(cluster_->agent(node), node < 2));
  // A node of each version is lost and decoded.
  for (int lost : {0, 2}) {
    job_->Close();
    ASSERT_NO_FATAL_FAILURE(Replace(lost));
    newest = SaveUntilProtected(ExpectBack(newest, {lost}).version);
  }
  EXPECT_EQ(attached(cluster_->RelayEndpoint(0)), kNodes);

  cluster_->relay(0).Kill();
  newest = SaveUntilProtected(newest);
  EXPECT_TRUE(WaitUntil([&] { return attached(cluster_->RelayEndpoint(0)) == 0; }, kTimeout));
  EXPECT_EQ(newest.incarnation, Incarnation{3}) << "no rank was started again";
}

TEST_F(CompatTest, APreviousCoordinatorServesTheseAgents) {
  UsePreviousCoordinator(true);
  ASSERT_NO_FATAL_FAILURE(Start(kNodes, 1));
  const VersionId promised = SaveUntilProtected();
  ExpectCliWorks();
  job_->Close();
  ASSERT_NO_FATAL_FAILURE(Replace(2));
  ExpectBack(promised, {2});
}

TEST_F(CompatTest, PreviousAgentsFollowThisCoordinator) {
  UsePreviousAgents({0, 1, 2});
  ASSERT_NO_FATAL_FAILURE(Start(kNodes, 1));
  const VersionId promised = SaveUntilProtected();
  ExpectCliWorks();
  job_->Close();
  ASSERT_NO_FATAL_FAILURE(Replace(2));
  ExpectBack(promised, {2});
}

TEST_F(CompatTest, ARollingUpgradeKeepsMemoryAndRanks) {
  UsePreviousAgents({0, 1, 2});
  UsePreviousCoordinator(true);
  ASSERT_NO_FATAL_FAILURE(Start(kNodes, 1));
  ASSERT_NO_FATAL_FAILURE(UpgradeUnderTheJob(false));
  const auto newest = job_->Newest(v1::Tier::kPeer);
  ASSERT_TRUE(newest);
  EXPECT_EQ(newest->incarnation, Incarnation{1});  // the same start of the job
  const SavingJob::Restored restored = ExpectBack(*newest, {});
  for (v1::Tier tier : restored.tiers) EXPECT_EQ(tier, v1::Tier::kMemory);
}

TEST_F(CompatTest, AnUpgradeCanBeReversed) {
  ASSERT_NO_FATAL_FAILURE(Start(kNodes, 1));
  ASSERT_NO_FATAL_FAILURE(UpgradeUnderTheJob(true));
  const auto newest = job_->Newest(v1::Tier::kPeer);
  ASSERT_TRUE(newest);
  ExpectBack(*newest, {});
}

TEST_F(CompatTest, DisksOfThePreviousVersionAreRestored) {
  UsePreviousAgents({0, 1, 2});
  UsePreviousCoordinator(true);
  ASSERT_NO_FATAL_FAILURE(Start(kNodes, 1));
  const VersionId promised = SaveUntilOnDisk();
  ASSERT_NO_FATAL_FAILURE(StartAgainFromDisks(false));
  ExpectBack(promised, {});
}

TEST_F(CompatTest, DisksOfThisVersionAreRestoredByThePrevious) {
  ASSERT_NO_FATAL_FAILURE(Start(kNodes, 1));
  const VersionId promised = SaveUntilOnDisk();
  ASSERT_NO_FATAL_FAILURE(StartAgainFromDisks(true));
  ExpectBack(promised, {});
}

// Users choose format 2 only when no program of the previous version has to read it.
TEST_F(CompatTest, ThePreviousVersionRefusesFormat2AndKeepsItsFiles) {
  ASSERT_EQ(::setenv("HOLDFAST_IMAGE_FORMAT", "2", 1), 0);
  ASSERT_NO_FATAL_FAILURE(Start(kNodes, 1));
  const VersionId promised = SaveUntilOnDisk();
  ASSERT_NO_FATAL_FAILURE(StartAgainFromDisks(true));
  const Status opened = job_->Open();
  ASSERT_TRUE(opened.ok()) << opened.ToString();
  ASSERT_FALSE(job_->Restore(kTimeout).has_value());
  EXPECT_THAT(AgentLog(0), HasSubstr("the image has format 2")) << Evidence();

  ASSERT_NO_FATAL_FAILURE(StartAgainFromDisks(false));
  ExpectBack(promised, {});
  ::unsetenv("HOLDFAST_IMAGE_FORMAT");
}

// A user who chose format 2 too early: the job goes on, and learns why nothing is saved.
TEST_F(CompatTest, PreviousAgentsRefuseSavesInFormat2) {
  UsePreviousAgents({0, 1, 2});
  ASSERT_EQ(::setenv("HOLDFAST_IMAGE_FORMAT", "2", 1), 0);
  ASSERT_NO_FATAL_FAILURE(Start(kNodes, 1));
  const uint64_t step = job_->Save();
  const auto sealed = job_->client(0).Wait(step, v1::Tier::kMemory, kTimeout);
  ASSERT_FALSE(sealed.ok());
  EXPECT_THAT(sealed.message(), HasSubstr("format 2")) << Evidence();
  EXPECT_GT(job_->Save(), step);
  ::unsetenv("HOLDFAST_IMAGE_FORMAT");
}

}  // namespace
}  // namespace holdfast::local
