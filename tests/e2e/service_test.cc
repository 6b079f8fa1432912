// Keeper, agent and coordinator as services of a service manager: what they report to it, a keeper
// that an agent did not start, and what a service manager does to a unit's cgroup.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "tests/e2e/cluster_test.h"
#include "tests/e2e/notify_socket.h"
#include "tests/e2e/saving_job.h"

namespace holdfast::local {
namespace {
using std::chrono::milliseconds;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
constexpr milliseconds kTimeout(30'000);
constexpr std::chrono::microseconds kWatchdog(600'000);

/// A separate cgroup in the unified hierarchy, like that of a unit. The destructor kills its
/// processes and removes it.
class Cgroup {
 public:
  explicit Cgroup(const std::string& name) {
    std::ifstream mounts("/proc/mounts");
    std::string device, folder, type, rest;
    while (mounts >> device >> folder >> type && std::getline(mounts, rest)) {
      if (type == "cgroup2") path_ = folder + "/" + name + "-" + std::to_string(::getpid());
    }
    std::error_code error;
    if (path_.empty() || !std::filesystem::create_directory(path_, error)) path_.clear();
  }
  ~Cgroup() {
    if (path_.empty()) return;
    KillAll();
    std::error_code error;
    WaitUntil([&] { return std::filesystem::remove(path_, error); }, kTimeout);
  }
  bool exists() const { return !path_.empty(); }
  /// Returns the prefix of a command that is to run in this cgroup.
  std::vector<std::string> Command() const {
    return {"/bin/sh", "-c", "echo $$ >" + path_ + "/cgroup.procs && exec \"$@\"", "sh"};
  }
  /// Kills all processes, as the stop of a unit does in the end.
  void KillAll() const { std::ofstream(path_ + "/cgroup.kill") << "1"; }

 private:
  std::string path_;
};

class ServiceTest : public ClusterTest {
 protected:
  void SetUp() override {
    options_.nodes = 1;
    options_.arena_bytes = 64ULL << 20;
    options_.disk_every = 1'000'000;  // so that restores come from memory
    options_.coordinator_settings = {"peers.enabled=false"};
    options_.agent_settings = {"peers.enabled=false"};
  }
  void TearDown() override {
    job_.reset();
    cluster_.reset();
    keeper_ = Process();
  }
  /// Starts a keeper as a separate service, before the agent.
  void StartKeeper(std::vector<std::string> command = {}) {
    const std::string run_dir = options_.root + "/n0/run";
    std::filesystem::create_directories(run_dir);
    command.insert(command.end(), {BinaryDir() + "/holdfast-keeper", "--run-dir", run_dir});
    ProcessOptions process;
    process.argv = command;
    process.log_path = options_.root + "/keeper.log";
    auto started = Process::Start(process);
    ASSERT_TRUE(started) << started.error().ToString();
    keeper_ = *std::move(started);
    ASSERT_TRUE(WaitUntil([&] { return Ping() == 0; }, kTimeout)) << ReadAll(process.log_path);
  }
  /// Returns the exit code of `holdfast-keeper --ping`.
  int Ping() const {
    ProcessOptions process;
    process.argv = {BinaryDir() + "/holdfast-keeper", "--run-dir", options_.root + "/n0/run",
                    "--ping"};
    auto ping = Process::Start(process);
    if (!ping || !ping->WaitFor(kTimeout)) return -1;
    return ping->exit_code().value_or(-1);
  }
  /// Returns the codes of the cluster's findings.
  std::vector<std::string> Findings() const {
    const auto status = cluster_->Cli({"status", "-o", "json"});
    std::vector<std::string> codes;
    const auto json = nlohmann::json::parse(status ? status->out : "", nullptr, false);
    if (!json.contains("findings")) return {"no answer"};
    for (const auto& finding : json["findings"]) codes.push_back(finding["code"]);
    return codes;
  }
  bool AwaitFinding(const std::string& code, bool shown = true) const {
    return WaitUntil(
        [&] {
          const std::vector<std::string> codes = Findings();
          return (std::count(codes.begin(), codes.end(), code) > 0) == shown;
        },
        kTimeout);
  }
  VersionId SaveToMemory() {
    job_.emplace(*cluster_, 1);
    EXPECT_TRUE(job_->Open().ok());
    EXPECT_TRUE(
        job_->SaveUntil([&] { return job_->Newest(v1::Tier::kMemory).has_value(); }, kTimeout));
    return job_->Newest(v1::Tier::kMemory).value_or(VersionId{});
  }
  /// Starts the agent again, and expects the rank's bytes of `version` from memory.
  void ExpectMemory(VersionId version) {
    job_->Close();
    ASSERT_TRUE(cluster_->StartAgent(0).ok());
    const Status up = cluster_->AwaitAgent(0);
    ASSERT_TRUE(up.ok()) << up.ToString();
    ASSERT_TRUE(job_->Open().ok());
    const auto restored = job_->Restore(kTimeout);
    ASSERT_TRUE(restored) << restored.error().ToString() << ReadAll(cluster_->AgentLog(0));
    EXPECT_GE(restored->version, version);
    EXPECT_EQ(restored->tiers[0], v1::Tier::kMemory);
  }

  Process keeper_;
  std::optional<SavingJob> job_;
};

TEST_F(ServiceTest, ServersReportThatTheyServeLiveAndStop) {
  NotifySocket manager(options_.root + "/notify", kWatchdog);
  ASSERT_NO_FATAL_FAILURE(StartKeeper());
  EXPECT_THAT(manager.Of(keeper_.pid()), ::testing::ElementsAre("READY=1"));
  options_.agent_settings.push_back("arena.start_keeper=false");
  ASSERT_NO_FATAL_FAILURE(StartServers());
  for (Process* server : {&cluster_->coordinator(), &cluster_->agent(0)}) {
    const pid_t pid = server->pid();
    ASSERT_TRUE(WaitUntil([&] { return manager.Count(pid, "WATCHDOG=1") >= 3; }, kTimeout));
    EXPECT_EQ(manager.Of(pid).front(), "READY=1");
    EXPECT_EQ(manager.Count(pid, "READY=1"), 1U);
    server->Signal(SIGTERM);
    ASSERT_TRUE(server->WaitFor(kTimeout));
    EXPECT_EQ(server->exit_code(), 0);
    EXPECT_EQ(manager.Of(pid).back(), "STOPPING=1");
  }
  keeper_.Signal(SIGTERM);
  ASSERT_TRUE(keeper_.WaitFor(kTimeout));
  EXPECT_THAT(manager.Of(keeper_.pid()), ::testing::ElementsAre("READY=1", "STOPPING=1"));
}

TEST_F(ServiceTest, AbstractSocketsAreSupportedAndChildrenDoNotReport) {
  NotifySocket manager("@" + options_.root, kWatchdog);
  ASSERT_NO_FATAL_FAILURE(StartServers());
  const pid_t agent = cluster_->agent(0).pid();
  EXPECT_TRUE(WaitUntil([&] { return manager.Count(agent, "READY=1") == 1; }, kTimeout));
  // The agent has started this keeper, which must not report in the agent's place.
  ASSERT_GT(cluster_->KeeperPid(0), 0);
  EXPECT_THAT(manager.Of(cluster_->KeeperPid(0)), IsEmpty());
}

TEST_F(ServiceTest, AProcessThatMakesNoProgressIsSilent) {
  NotifySocket manager(options_.root + "/notify", kWatchdog);
  ASSERT_NO_FATAL_FAILURE(StartServers());
  for (Process* server : {&cluster_->coordinator(), &cluster_->agent(0)}) {
    const pid_t pid = server->pid();
    ASSERT_TRUE(WaitUntil([&] { return manager.Count(pid, "WATCHDOG=1") >= 2; }, kTimeout));
    {
      // The first thread, which waits for signals, still runs.
      const OtherThreadsStopped stopped(pid);
      if (!stopped.complete()) GTEST_SKIP() << "no permission to trace processes";
      std::this_thread::sleep_for(kWatchdog);  // a report may have been under way
      const size_t before = manager.Count(pid, "WATCHDOG=1");
      std::this_thread::sleep_for(3 * kWatchdog);
      EXPECT_EQ(manager.Count(pid, "WATCHDOG=1"), before) << "it reports life without progress";
    }
    const size_t resumed = manager.Count(pid, "WATCHDOG=1");
    EXPECT_TRUE(
        WaitUntil([&] { return manager.Count(pid, "WATCHDOG=1") > resumed + 1; }, kTimeout));
  }
}

TEST_F(ServiceTest, AnAgentUsesTheKeeperOfAnotherService) {
  options_.agent_settings.push_back("arena.start_keeper=false");
  ASSERT_NO_FATAL_FAILURE(StartKeeper());
  ASSERT_NO_FATAL_FAILURE(StartServers());
  const VersionId version = SaveToMemory();
  EXPECT_EQ(cluster_->KeeperPid(0), keeper_.pid());
  cluster_->agent(0).Kill();
  EXPECT_EQ(Ping(), 0);
  ASSERT_NO_FATAL_FAILURE(ExpectMemory(version));

  // The service manager, not the agent, replaces a keeper that dies. The new one gets the memory.
  keeper_.Kill();
  EXPECT_TRUE(AwaitFinding("KEEPER_LOST"));
  EXPECT_EQ(Ping(), 1);
  ASSERT_NO_FATAL_FAILURE(StartKeeper());
  EXPECT_TRUE(AwaitFinding("KEEPER_LOST", false));
  cluster_->agent(0).Kill();
  ASSERT_NO_FATAL_FAILURE(ExpectMemory(version));
}

TEST_F(ServiceTest, StoppingTheAgentsUnitKeepsTheMemory) {
  const Cgroup keeper_unit("holdfast-keeper");
  const Cgroup agent_unit("holdfast-agent");
  if (!agent_unit.exists()) GTEST_SKIP() << "no permission to create cgroups";
  NotifySocket manager(options_.root + "/notify", kWatchdog);
  options_.agent_settings.push_back("arena.start_keeper=false");
  options_.agent_command_of[0] = agent_unit.Command();
  ASSERT_NO_FATAL_FAILURE(StartKeeper(keeper_unit.Command()));
  ASSERT_NO_FATAL_FAILURE(StartServers());
  const VersionId version = SaveToMemory();
  EXPECT_THAT(Findings(), Not(Contains("KEEPER_SHARED")));
  agent_unit.KillAll();
  ASSERT_TRUE(cluster_->agent(0).WaitFor(kTimeout));
  ExpectMemory(version);
  EXPECT_THAT(Findings(), Not(Contains("KEEPER_SHARED")));
}

TEST_F(ServiceTest, AKeeperInTheAgentsUnitIsAWarning) {
  {
    NotifySocket manager(options_.root + "/notify", kWatchdog);
    ASSERT_NO_FATAL_FAILURE(StartServers());
  }
  EXPECT_TRUE(AwaitFinding("KEEPER_SHARED"));
  EXPECT_THAT(ReadAll(cluster_->AgentLog(0)), HasSubstr("arena.start_keeper = false"));

  // Without a service manager nothing ends the keeper with its agent.
  cluster_->agent(0).Kill();
  ASSERT_TRUE(cluster_->StartAgent(0).ok());
  EXPECT_TRUE(AwaitFinding("KEEPER_SHARED", false));
}

}  // namespace
}  // namespace holdfast::local
