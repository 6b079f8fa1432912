// Servers as container engines run them: io_uring refused as by the engines' default profiles, no
// huge pages, no mlock, a small /dev/shm, a read-only root, another user. Also tests the end of
// containers.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/io_uring.h>
#include <sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>

#include "agent/api/socket.h"
#include "base/fd.h"
#include "tests/e2e/cluster_test.h"
#include "tests/e2e/saving_job.h"

namespace holdfast::local {
namespace {
using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
constexpr milliseconds kTimeout(30'000);
constexpr uid_t kOtherUser = 65534;
constexpr uint64_t kSmallShm = 64ULL << 20;

class ContainerTest : public ClusterTest {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can change users and mounts";
    options_.coordinator_settings = {"peers.group_nodes=2"};
    std::filesystem::permissions(options_.root, std::filesystem::perms(0755));
    Own(options_.root);
  }
  void TearDown() override {
    job_.reset();
    cluster_.reset();
    keeper_ = Process();
  }
  static void Own(const std::string& path) {
    std::filesystem::create_directories(path);
    ASSERT_EQ(::chown(path.c_str(), kOtherUser, kOtherUser), 0);
  }
  /// Returns the command that starts a server like a container. `folders` are its volumes.
  static std::vector<std::string> Container(const std::string& profile,
                                            const std::vector<std::string>& folders) {
    std::vector<std::string> command = {HOLDFAST_CONFINE,
                                        "--profile",
                                        std::string(HOLDFAST_PROFILES) + "/" + profile + ".json",
                                        "--uid",
                                        std::to_string(kOtherUser),
                                        "--read-only"};
    for (const std::string& folder : folders) {
      Own(folder);
      command.insert(command.end(), {"--writable", folder});
    }
    command.insert(command.end(), {"--shm", std::to_string(kSmallShm)});
    return command;
  }
  static std::vector<std::string> Started(std::vector<std::string> container) {
    container.emplace_back("--");
    return container;
  }
  void Start() {
    cluster_.emplace(options_);
    const Status started = cluster_->Start();
    ASSERT_TRUE(started.ok()) << started.ToString() << ReadAll(cluster_->CoordinatorLog());
  }
  void StartAgents() {
    for (int node = 0; node < options_.nodes; ++node) {
      ASSERT_TRUE(cluster_->StartAgent(node).ok());
      const Status up = cluster_->AwaitAgent(node);
      ASSERT_TRUE(up.ok()) << up.ToString();
    }
  }
  nlohmann::json Findings() const {
    const auto status = cluster_->Cli({"status", "-o", "json"});
    const auto json = nlohmann::json::parse(status ? status->out : "", nullptr, false);
    return json.is_object() ? json.value("findings", nlohmann::json()) : nlohmann::json();
  }
  std::vector<std::string> Codes() const {
    std::vector<std::string> codes;
    for (const auto& finding : Findings()) codes.push_back(finding["code"]);
    return codes;
  }
  /// Saves steps until all tiers have the last one, so that no newer version is on its way to a
  /// disk. A rank without a free slot skips a step, which no tier then has.
  bool SavesAStepToAllTiers() {
    return WaitUntil(
        [&] {
          const uint64_t step = job_->Save();
          const auto has = [&](v1::Tier tier) {
            const auto newest = job_->Newest(tier);
            return newest && newest->step.value == step;
          };
          return WaitUntil([&] { return has(v1::Tier::kDisk) && has(v1::Tier::kPeer); },
                           std::chrono::seconds(2));
        },
        kTimeout);
  }
  /// Restarts the job and expects all ranks to restore their bytes of a version at least as new as
  /// `version` from `tier`.
  void ExpectRestored(VersionId version, v1::Tier tier) {
    ASSERT_TRUE(job_->Open().ok());
    const auto restored = job_->Restore(kTimeout);
    ASSERT_TRUE(restored) << restored.error().ToString() << ReadAll(cluster_->AgentLog(0));
    EXPECT_GE(restored->version, version);
    for (const v1::Tier used : restored->tiers) EXPECT_EQ(used, tier);
  }

  /// Kills a node's agent with its container, and waits for the end of the first process.
  void KillAgent(int node) {
    cluster_->agent(node).Kill();
    ASSERT_TRUE(
        WaitUntil([&] { return !agent::ConnectUnix(cluster_->AgentSocket(node)); }, kTimeout));
  }

  // ---- one keeper container and one agent container on node 0 ----

  void PutAgentInContainer() {
    options_.nodes = 1;
    options_.coordinator_settings = {"peers.enabled=false"};
    options_.agent_settings = {"peers.enabled=false"};
    options_.disk_every = 1'000'000;  // so that restores come from memory
    const std::string node = options_.root + "/n0";
    std::vector<std::string> agent = Container("no-io-uring-eperm", {node, node + "/run"});
    agent.emplace_back("--pids");
    options_.agent_command_of[0] = Started(agent);
    options_.coordinator_command = Started(Container("no-io-uring-eperm", {options_.root}));
  }
  void StartKeeperContainer() {
    const std::string run_dir = options_.root + "/n0/run";
    std::vector<std::string> command = Container("no-io-uring-eperm", {run_dir});
    command.insert(command.end(),
                   {"--pids", "--", BinaryDir() + "/holdfast-keeper", "--run-dir", run_dir});
    ProcessOptions process;
    process.argv = command;
    process.log_path = options_.root + "/keeper.log";
    auto started = Process::Start(process);
    ASSERT_TRUE(started) << started.error().ToString();
    keeper_ = *std::move(started);
    options_.agent_settings.push_back("arena.start_keeper=false");
  }
  /// Runs `body` in a process of the agent's PID namespace, as a trainer whose process the agent
  /// can see. Returns whether it returned true.
  bool AsTrainer(const std::function<bool()>& body) {
    const std::string launcher = std::to_string(cluster_->agent(0).pid());
    const std::string agent = ReadAll("/proc/" + launcher + "/task/" + launcher + "/children");
    const UniqueFd theirs = Namespace(std::to_string(std::stoi(agent)));
    const UniqueFd own = Namespace("self");
    if (::setns(theirs.get(), CLONE_NEWPID) != 0) return false;
    const pid_t trainer = ::fork();
    if (trainer == 0) ::_exit(body() ? 0 : 1);
    EXPECT_EQ(::setns(own.get(), CLONE_NEWPID), 0);
    int status = -1;
    return ::waitpid(trainer, &status, 0) == trainer && status == 0;
  }
  static UniqueFd Namespace(const std::string& process) {
    return UniqueFd(::open(("/proc/" + process + "/ns/pid").c_str(), O_RDONLY | O_CLOEXEC));
  }
  bool SavesToMemory() {
    return AsTrainer([&] {
      SavingJob job(*cluster_, 1);
      return job.Open().ok() &&
             job.SaveUntil([&] { return job.Newest(v1::Tier::kMemory).has_value(); }, kTimeout);
    });
  }
  bool RestoresFromMemory() {
    return AsTrainer([&] {
      SavingJob job(*cluster_, 1);
      if (!job.Open().ok()) return false;
      const auto restored = job.Restore(kTimeout);
      return restored && restored->version.incarnation.value != 0 &&
             restored->tiers[0] == v1::Tier::kMemory;
    });
  }

  Process keeper_;
  std::optional<SavingJob> job_;
};

class RefusedCallsTest : public ContainerTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(RefusedCallsTest, BytesComeBackFromMemoryAndDisk) {
  options_.nodes = 2;
  options_.agent_settings = {"peers.build_timeout_ms=10000"};
  options_.coordinator_command = Started(Container(GetParam(), {options_.root}));
  for (int node = 0; node < 2; ++node) {
    const std::string folder = options_.root + "/n" + std::to_string(node);
    options_.agent_command_of[node] = Started(Container(GetParam(), {folder}));
  }
  ASSERT_NO_FATAL_FAILURE(Start());
  // The images of a rank are larger than /dev/shm.
  job_.emplace(*cluster_, 2, (kSmallShm + (8 << 20)) / sizeof(uint64_t) / 2);
  ASSERT_TRUE(job_->Open().ok());
  ASSERT_TRUE(SavesAStepToAllTiers()) << ReadAll(cluster_->AgentLog(0));
  const VersionId version = *job_->Newest(v1::Tier::kDisk);
  job_->Close();

  EXPECT_THAT(Codes(), Contains("IO_URING_REFUSED").Times(2));
  EXPECT_THAT(Findings()[0]["message"].get<std::string>(),
              AllOf(HasSubstr("io_uring_setup"), HasSubstr("seccomp")));
  EXPECT_THAT(ReadAll(cluster_->AgentLog(0)), HasSubstr("to=posix"));
  const std::string process = "/proc/" + std::to_string(cluster_->agent(0).pid());
  EXPECT_THAT(ReadAll(process + "/status"),
              AllOf(HasSubstr("\nUid:\t65534\t65534"), HasSubstr("\nSeccomp:\t2\n")));
  EXPECT_THAT(ReadAll(process + "/mounts"),
              AllOf(ContainsRegex(" / [a-z0-9]+ ro[, ]"),
                    ContainsRegex(" /dev/shm tmpfs rw[a-z,]*,size=65536k")));

  for (int node = 0; node < 2; ++node) ASSERT_NO_FATAL_FAILURE(KillAgent(node));
  ASSERT_NO_FATAL_FAILURE(StartAgents());
  ASSERT_NO_FATAL_FAILURE(ExpectRestored(version, v1::Tier::kMemory));
  job_->Close();
  cluster_->KillEverything();
  ASSERT_TRUE(cluster_->StartCoordinator().ok());
  ASSERT_NO_FATAL_FAILURE(StartAgents());
  ASSERT_NO_FATAL_FAILURE(ExpectRestored(version, v1::Tier::kDisk));
}
INSTANTIATE_TEST_SUITE_P(Container, RefusedCallsTest,
                         ::testing::Values("no-io-uring-eperm", "no-io-uring-enosys"),
                         [](const auto& tested) {
                           return std::string(tested.param).substr(sizeof("no-io-uring-") - 1);
                         });

TEST_F(ContainerTest, TheProfileForKubernetesAllowsIoUring) {
  io_uring_params parameters{};
  const UniqueFd ring(static_cast<int>(::syscall(SYS_io_uring_setup, 1, &parameters)));
  if (!ring.valid()) GTEST_SKIP() << "this machine refuses io_uring";
  options_.nodes = 1;
  options_.coordinator_settings = {"peers.enabled=false"};
  options_.agent_settings = {"peers.enabled=false"};
  const std::string profile = "../../../deploy/kubernetes/io-uring/profile";
  options_.agent_command_of[0] = Started(Container(profile, {options_.root + "/n0"}));
  options_.coordinator_command = Started(Container(profile, {options_.root}));
  ASSERT_NO_FATAL_FAILURE(Start());
  job_.emplace(*cluster_, 1);
  ASSERT_TRUE(job_->Open().ok());
  ASSERT_TRUE(job_->SaveUntil([&] { return job_->Newest(v1::Tier::kDisk).has_value(); }, kTimeout))
      << ReadAll(cluster_->AgentLog(0));
  EXPECT_THAT(Codes(), Not(Contains("IO_URING_REFUSED")));
  const VersionId version = *job_->Newest(v1::Tier::kDisk);
  job_->Close();
  cluster_->KillEverything();
  ASSERT_TRUE(cluster_->StartCoordinator().ok());
  ASSERT_NO_FATAL_FAILURE(StartAgents());
  ExpectRestored(version, v1::Tier::kDisk);
}

TEST_F(ContainerTest, AKeeperContainerOutlivesTheAgentsContainer) {
  PutAgentInContainer();
  ASSERT_NO_FATAL_FAILURE(StartKeeperContainer());
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_TRUE(SavesToMemory()) << ReadAll(cluster_->AgentLog(0));
  EXPECT_THAT(Codes(), Not(Contains("KEEPER_SHARED")));

  // When the first process of a container ends, all its other processes end, too.
  ASSERT_NO_FATAL_FAILURE(KillAgent(0));
  ASSERT_NO_FATAL_FAILURE(StartAgents());
  EXPECT_TRUE(RestoresFromMemory()) << ReadAll(cluster_->AgentLog(0));

  // SIGTERM ends the first process of a container in order.
  cluster_->agent(0).Signal(SIGTERM);
  ASSERT_TRUE(cluster_->agent(0).WaitFor(kTimeout));
  EXPECT_EQ(cluster_->agent(0).exit_code(), 0) << ReadAll(cluster_->AgentLog(0));
  ASSERT_NO_FATAL_FAILURE(StartAgents());
  EXPECT_TRUE(RestoresFromMemory()) << ReadAll(cluster_->AgentLog(0));
  keeper_.Signal(SIGTERM);
  ASSERT_TRUE(keeper_.WaitFor(kTimeout));
  EXPECT_EQ(keeper_.exit_code(), 0);
}

TEST_F(ContainerTest, AKeeperInTheAgentsContainerIsAWarningAndEndsWithIt) {
  PutAgentInContainer();
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_TRUE(SavesToMemory()) << ReadAll(cluster_->AgentLog(0));
  EXPECT_THAT(Codes(), Contains("KEEPER_SHARED"));
  ASSERT_NO_FATAL_FAILURE(KillAgent(0));
  ASSERT_TRUE(WaitUntil([&] { return cluster_->KeeperPid(0) == 0; }, kTimeout));
  ASSERT_NO_FATAL_FAILURE(StartAgents());
  EXPECT_FALSE(RestoresFromMemory());
}

}  // namespace
}  // namespace holdfast::local
