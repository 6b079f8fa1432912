// Jobs that the coordinator runs. After failures of workers and nodes, the job recovers without an
// operator, and ends with the parameters of an uninterrupted run, byte for byte.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "agent/workers/worker_files.h"
#include "testing/cluster/training.h"
#include "tests/agent/telemetry/fake_nvml.h"
#include "tests/e2e/cluster_test.h"

namespace holdfast::local {
namespace {
using nlohmann::json;
using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
constexpr milliseconds kTimeout(120'000);
constexpr uint64_t kSteps = 120;
// The detection times that the product promises.
constexpr int64_t kHangFoundMs = 10'000;
constexpr int64_t kNodeLossFoundMs = 5'000;
constexpr uint64_t kSlowFoundSteps = 20;

class RunTest : public ClusterTest {
 protected:
  void SetUp() override { std::filesystem::create_directories(root_ + "/meet"); }
  void TearDown() override {
    if (cluster_) {
      ASSERT_TRUE(cluster_->Cli({"stop", "lm", "--now"}).has_value());
      WaitUntil([&] { return Running().empty(); }, milliseconds(20'000));
      EXPECT_TRUE(Running().empty()) << "a worker still runs";
    }
    cluster_.reset();
  }

  void StartCluster(int nodes, std::vector<std::string> coordinator_settings = {},
                    std::map<int, std::vector<std::string>> agent_settings_of = {}) {
    options_.agent_settings_of = std::move(agent_settings_of);
    options_.coordinator_settings = std::move(coordinator_settings);
    options_.nodes = nodes;
    options_.arena_bytes = 64ULL << 20;
    ASSERT_NO_FATAL_FAILURE(StartServers());
    ASSERT_TRUE(WaitUntil([&] { return NodesUp() == static_cast<size_t>(nodes); }, kTimeout));
  }
  size_t NodesUp() {
    const json answer = CliJson({"nodes"});
    if (!answer.is_object()) return 0;
    size_t up = 0;
    for (const json& node : answer["nodes"]) up += node["alive"] == true ? 1 : 0;
    return up;
  }

  Cluster::CliResult Cli(const std::vector<std::string>& arguments) {
    auto result = cluster_->Cli(arguments);
    return result ? *result : Cluster::CliResult{-1, "", result.error().ToString()};
  }
  json CliJson(std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"-o", "json"});
    return json::parse(Cli(arguments).out, nullptr, false);
  }

  std::vector<std::string> Trainer(uint64_t sleep_ms) const {
    return {BinaryDir() + "/holdfast-charlm",
            "--rendezvous",
            root_ + "/meet",
            "--steps",
            std::to_string(kSteps),
            "--step-sleep-ms",
            std::to_string(sleep_ms),
            "--final",
            root_ + "/final"};
  }
  void Run(const std::vector<std::string>& options, const std::vector<std::string>& command) {
    std::vector<std::string> arguments = {"run", "--job", "lm", "--detach", "--grace", "2s"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    arguments.push_back("--");
    arguments.insert(arguments.end(), command.begin(), command.end());
    const Cluster::CliResult result = Cli(arguments);
    ASSERT_EQ(result.exit_code, 0) << result.errors;
  }
  void RunTrainer(int nodes, int spares) {
    ASSERT_NO_FATAL_FAILURE(
        Run({"--nnodes", std::to_string(nodes), "--spares", std::to_string(spares)}, Trainer(60)));
    ASSERT_TRUE(AwaitStep(10));
  }
  bool AwaitStep(uint64_t step) {
    return WaitUntil([&] { return NewestStep() >= step; }, kTimeout);
  }
  uint64_t NewestStep() {
    const json status = CliJson({"status", "lm"});
    if (!status.is_object() || status["jobs"].empty()) return 0;
    return status["jobs"][0]["newest_seen_step"].get<uint64_t>();
  }
  /// The running workers by rank, found in the nodes' worker folders.
  std::map<uint32_t, agent::WorkerPids> Running() {
    std::map<uint32_t, agent::WorkerPids> running;
    for (int node = 0; node < cluster_->nodes(); ++node) {
      std::error_code none;
      const std::string folder = cluster_->RunDir(node) + "/workers/lm";
      for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
        const auto spec = agent::ReadSpec(entry.path());
        const auto pids = agent::ReadPids(entry.path());
        if (spec && pids && IsAlive(pids->worker)) {
          running[spec->rank.value] = *pids;
          node_of_[spec->rank.value] = node;
        }
      }
    }
    return running;
  }
  /// The incidents with an action. On a loaded machine, slowness may be noted without an action.
  json Incidents() {
    json acted = json::array();
    const json answer = CliJson({"incidents", "--job", "lm"});
    for (const json& one : answer["incidents"]) {
      if (one["state"] != "noted") acted.push_back(one);
    }
    return acted;
  }
  void AwaitFinish() {
    const Cluster::CliResult result = Cli({"run", "--follow", "--job", "lm"});
    ASSERT_EQ(result.exit_code, 0) << result.errors << result.out;
    EXPECT_THAT(result.errors, HasSubstr("finished"));
  }
  /// Expects the final parameters of an uninterrupted run.
  void ExpectBitIdentical(int world) {
    TrainingOptions options;
    options.world = world;
    options.steps = kSteps;
    const auto expected = UninterruptedParameters(options, kTimeout);
    ASSERT_TRUE(expected.has_value()) << expected.error().ToString();
    EXPECT_TRUE(ReadAll(root_ + "/final") == *expected) << "final parameters differ";
  }
  /// Expects one recovered incident, and stores it in incident_.
  void ReadOnlyIncident() {
    const json incidents = Incidents();
    ASSERT_EQ(incidents.size(), 1U) << incidents.dump(1);
    incident_ = incidents[0];
    EXPECT_EQ(incident_["state"], "recovered");
  }

  json incident_;
  std::map<uint32_t, int> node_of_;
};

TEST_F(RunTest, AKilledRankIsRestarted) {
  StartCluster(4);
  ASSERT_NO_FATAL_FAILURE(RunTrainer(4, 0));
  ::kill(Running().at(2).worker.pid, SIGKILL);
  ASSERT_NO_FATAL_FAILURE(AwaitFinish());
  ASSERT_NO_FATAL_FAILURE(ReadOnlyIncident());
  EXPECT_EQ(incident_["kind"], "worker died");
  EXPECT_EQ(incident_["ranks"], json({2}));
  EXPECT_LE(incident_["lost_steps"], 1);
  EXPECT_LE(incident_["detect_ms"], 1000);
  ExpectBitIdentical(4);
}

TEST_F(RunTest, ALostNodeIsReplacedByASpare) {
  StartCluster(5);
  ASSERT_NO_FATAL_FAILURE(RunTrainer(4, 1));
  const auto running = Running();
  const int node = node_of_.at(1);
  ::kill(running.at(1).shim.pid, SIGKILL);
  ::kill(running.at(1).worker.pid, SIGKILL);
  cluster_->DestroyNode(node);
  ASSERT_NO_FATAL_FAILURE(AwaitFinish());
  const json incidents = Incidents();
  // The agent may have reported the worker's death before its own end.
  ASSERT_THAT(incidents.size(), ::testing::AnyOf(1U, 2U)) << incidents.dump(1);
  incident_ = incidents[0];
  EXPECT_EQ(incident_["state"], "recovered");
  EXPECT_EQ(incident_["nodes"], json({"n" + std::to_string(node)})) << incident_.dump(1);
  EXPECT_THAT(incident_["plan"].get<std::string>(), HasSubstr("n4 for n" + std::to_string(node)));
  EXPECT_GE(incident_["detect_ms"], 0);
  EXPECT_LE(incident_["detect_ms"], kNodeLossFoundMs);
  EXPECT_LE(incident_["lost_steps"], 1);
  ExpectBitIdentical(4);
}

TEST_F(RunTest, ARunOfOneRankLeavesADrainedNodeWithoutAnIncident) {
  StartCluster(2);
  ASSERT_NO_FATAL_FAILURE(RunTrainer(1, 0));
  ASSERT_EQ(Running().size(), 1U);
  const int before = node_of_.at(0);
  const Cluster::CliResult drained =
      Cli({"drain", "n" + std::to_string(before), "--move-runs", "--wait", "60s"});
  EXPECT_EQ(drained.exit_code, 0) << drained.out << drained.errors;
  EXPECT_THAT(drained.out, HasSubstr("safe to stop"));
  Running();
  EXPECT_EQ(node_of_.at(0), 1 - before);
  cluster_->DestroyNode(before);
  ASSERT_NO_FATAL_FAILURE(AwaitFinish());
  EXPECT_EQ(Incidents().size(), 0U) << Incidents().dump(1);
  ExpectBitIdentical(1);
}

TEST_F(RunTest, ABrokenGpuIsNamedAndItsNodeReplaced) {
  FakeNvml nvml(HOLDFAST_FAKE_NVML, root_, "devices 8\n");
  StartCluster(3, {}, {{1, {"gpus.nvml_library=" + nvml.path()}}});
  ASSERT_NO_FATAL_FAILURE(RunTrainer(2, 1));
  ASSERT_EQ(Running().size(), 2U);
  ASSERT_EQ(node_of_.at(1), 1);
  nvml.Add("event 3 79\n");
  const auto noted = [&] {
    return CliJson({"incidents", "--job", "lm"}).dump().find("\"GPU error\"") != std::string::npos;
  };
  ASSERT_TRUE(WaitUntil(noted, kTimeout)) << ReadAll(cluster_->AgentLog(1));
  // The GPU error must survive a restart of the coordinator.
  cluster_->coordinator().Kill();
  ASSERT_TRUE(cluster_->StartCoordinator().ok());
  ASSERT_TRUE(WaitUntil([&] { return NodesUp() == 3; }, kTimeout));
  ::kill(Running().at(1).worker.pid, SIGKILL);
  ASSERT_NO_FATAL_FAILURE(AwaitFinish());
  ASSERT_NO_FATAL_FAILURE(ReadOnlyIncident());
  EXPECT_EQ(incident_["nodes"], json({"n1"}));
  EXPECT_THAT(incident_["plan"].get<std::string>(), HasSubstr("n2 for n1"));
  const Cluster::CliResult shown =
      Cli({"incidents", "show", std::to_string(incident_["id"].get<uint64_t>())});
  EXPECT_THAT(shown.out, HasSubstr("Xid 79 on GPU 3 (00000000:C3:00.0) of node n1: GPU has fallen "
                                   "off the bus"));
  ExpectBitIdentical(2);
}

TEST_F(RunTest, AHungRankIsFoundAndTheJobGoesOn) {
  StartCluster(4);
  ASSERT_NO_FATAL_FAILURE(RunTrainer(4, 0));
  ::kill(Running().at(3).worker.pid, SIGSTOP);
  ASSERT_NO_FATAL_FAILURE(AwaitFinish());
  ASSERT_NO_FATAL_FAILURE(ReadOnlyIncident());
  // A rank stopped in the middle of a collective has entered it, so its connection is reported.
  EXPECT_THAT(incident_["kind"].get<std::string>(), HasSubstr("communication hang"));
  EXPECT_THAT(incident_["nodes"].dump(), HasSubstr("n3")) << incident_.dump(1);
  if (incident_["kind"] == "non-communication hang") {
    EXPECT_EQ(incident_["ranks"], json({3}));
  }
  EXPECT_GE(incident_["detect_ms"], 5'000) << "a short pause is not a hang";
  EXPECT_LE(incident_["detect_ms"], kHangFoundMs);
  EXPECT_LE(incident_["lost_steps"], 1);
  EXPECT_FALSE(incident_["evidence"].empty());
  ExpectBitIdentical(4);
}

TEST_F(RunTest, APauseIsNotedAndRestartsNothing) {
  StartCluster(2, {"detect.restart_stuck_after_ms=60000", "detect.restart_absent_after_ms=600000"});
  ASSERT_NO_FATAL_FAILURE(RunTrainer(2, 0));
  const pid_t paused = Running().at(1).worker.pid;
  ::kill(paused, SIGSTOP);
  const auto noted = [&] {
    return CliJson({"incidents", "--job", "lm"}).dump().find("hang") != std::string::npos;
  };
  EXPECT_TRUE(WaitUntil(noted, milliseconds(30'000)));
  ::kill(paused, SIGCONT);
  ASSERT_NO_FATAL_FAILURE(AwaitFinish());
  EXPECT_TRUE(Incidents().empty()) << Incidents().dump(1);
  ExpectBitIdentical(2);
}

TEST_F(RunTest, AHealthyJobOnALoadedMachineHasNoIncident) {
  StartCluster(4);
  std::vector<pid_t> load;
  for (unsigned i = 0; i < 2 * std::max(2U, std::thread::hardware_concurrency()); ++i) {
    const pid_t burner = ::fork();
    if (burner == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (volatile uint64_t turns = 0;;) turns = turns + 1;
    }
    load.push_back(burner);
  }
  EXPECT_NO_FATAL_FAILURE(RunTrainer(4, 0));
  EXPECT_NO_FATAL_FAILURE(AwaitFinish());
  for (const pid_t burner : load) {
    ::kill(burner, SIGKILL);
    ::waitpid(burner, nullptr, 0);
  }
  EXPECT_TRUE(Incidents().empty()) << Incidents().dump(1);
  const json answer = CliJson({"incidents", "--job", "lm"});
  for (const json& one : answer["incidents"]) {
    EXPECT_THAT(one["kind"].get<std::string>(), Not(HasSubstr("hang"))) << one.dump(1);
    EXPECT_NE(one["kind"], "dead") << one.dump(1);
  }
}

/// Processes that take all time of a processor from another one.
class Starvation {
 public:
  explicit Starvation(pid_t victim) : victim_(victim) {
    // The time of a processor that an idle process gets is divided by the number of the others.
    for (int i = 0; i < 4; ++i) burners_.push_back(Burn());
    Give(SCHED_IDLE, 19);
  }
  ~Starvation() {
    for (const pid_t burner : burners_) {
      ::kill(burner, SIGKILL);
      ::waitpid(burner, nullptr, 0);
    }
    Give(SCHED_OTHER, 0);
  }

 private:
  static pid_t Burn() {
    const pid_t burner = ::fork();
    if (burner == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (volatile uint64_t turns = 0;;) turns = turns + 1;
    }
    SetAutogroup(burner, -20);
    ::setpriority(PRIO_PROCESS, static_cast<id_t>(burner), -20);
    PinToOneProcessor(burner);
    return burner;
  }
  /// Some kernels share processors between sessions, and then between the processes of each.
  static void SetAutogroup(pid_t pid, int nice) {
    std::ofstream(fmt::format("/proc/{}/autogroup", pid)) << nice;
  }
  static void PinToOneProcessor(pid_t thread) {
    cpu_set_t set;
    ::sched_getaffinity(::getppid(), sizeof(set), &set);
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int processor = 0; CPU_COUNT(&one) == 0; ++processor) {
      if (CPU_ISSET(processor, &set)) CPU_SET(processor, &one);
    }
    ::sched_setaffinity(thread, sizeof(one), &one);
  }
  void Give(int policy, int nice) const {
    SetAutogroup(victim_, nice);
    std::error_code none;
    for (const auto& task :
         std::filesystem::directory_iterator(fmt::format("/proc/{}/task", victim_), none)) {
      const pid_t thread = std::stoi(task.path().filename());
      const sched_param parameters{};
      ::sched_setscheduler(thread, policy, &parameters);
      PinToOneProcessor(thread);
    }
  }

  const pid_t victim_;
  std::vector<pid_t> burners_;
};

TEST_F(RunTest, ARankThatGetsNoProcessorIsNotSuspected) {
  StartCluster(2, {"detect.restart_stuck_after_ms=60000", "detect.restart_absent_after_ms=600000"});
  ASSERT_NO_FATAL_FAILURE(RunTrainer(2, 0));
  uint64_t steps = NewestStep();
  {
    const Starvation starvation(Running().at(1).worker.pid);
    std::this_thread::sleep_for(std::chrono::seconds(14));
    steps = NewestStep() - steps;
  }
  if (steps > 5) GTEST_SKIP() << "the kernel gave the rank time for " << steps << " steps";
  ASSERT_NO_FATAL_FAILURE(AwaitFinish());
  EXPECT_THAT(CliJson({"incidents", "--job", "lm"}).dump(1), Not(HasSubstr("hang")));
  ExpectBitIdentical(2);
}

TEST_F(RunTest, AStragglerIsNamedAndNoNodeIsReplaced) {
  StartCluster(4);
  std::string script = "exec";
  for (const std::string& word : Trainer(60)) script += " " + word;
  script += " --slow-ms 40 --slow-from-step 20000";
  // Only rank 2 is slow, from step 30 on.
  script = "if [ $RANK = 2 ]; then from=30; else from=1000000; fi; " + script;
  const size_t number = script.find("20000");
  script.replace(number, 5, "$from");
  ASSERT_NO_FATAL_FAILURE(Run({"--nnodes", "4"}, {"sh", "-c", script}));
  const auto noted = [&] {
    return CliJson({"incidents", "--job", "lm"}).dump().find("slow") != std::string::npos;
  };
  ASSERT_TRUE(WaitUntil(noted, kTimeout));
  EXPECT_LE(NewestStep(), 30 + kSlowFoundSteps + 5) << "five steps may pass while the test polls";
  ASSERT_NO_FATAL_FAILURE(AwaitFinish());
  EXPECT_TRUE(Incidents().empty()) << "one signal of slowness must not cause an action";
  const json answer = CliJson({"incidents", "--job", "lm"});
  bool named = false;
  for (const json& incident : answer["incidents"]) {
    named =
        named || (incident["kind"] == "non-communication slow" && incident["ranks"] == json({2}));
  }
  EXPECT_TRUE(named) << answer.dump(1);
  ExpectBitIdentical(4);
}

TEST_F(RunTest, RestartsOfAgentsAndCoordinatorDoNotDisturbTheJob) {
  StartCluster(3);
  ASSERT_NO_FATAL_FAILURE(RunTrainer(3, 0));
  const auto before = Running();
  cluster_->agent(1).Kill();
  ASSERT_TRUE(cluster_->StartAgent(1).ok());
  ASSERT_TRUE(cluster_->AwaitAgent(1).ok());
  cluster_->coordinator().Kill();
  ASSERT_TRUE(cluster_->StartCoordinator().ok());
  const uint64_t step = NewestStep();
  ASSERT_TRUE(AwaitStep(step + 5));
  const auto after = Running();
  ASSERT_EQ(after.size(), 3U);
  for (uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(after.at(rank).worker, before.at(rank).worker);
  }
  ASSERT_NO_FATAL_FAILURE(AwaitFinish());
  EXPECT_TRUE(Incidents().empty()) << Incidents().dump(1);
  ExpectBitIdentical(3);
}

TEST_F(RunTest, ABrokenProgramIsGivenUp) {
  StartCluster(2);
  ASSERT_NO_FATAL_FAILURE(
      Run({"--nnodes", "2", "--max-restarts", "1"}, {"sh", "-c", "echo it is broken; exit 4"}));
  const Cluster::CliResult result = Cli({"run", "--follow", "--job", "lm"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.errors, HasSubstr("exit code 4"));
  EXPECT_THAT(result.out, HasSubstr("] it is broken"));
  const json incidents = Incidents();
  ASSERT_EQ(incidents.size(), 2U);
  EXPECT_EQ(incidents[0]["state"], "given up");
  EXPECT_THAT(incidents[0]["evidence"].dump(), HasSubstr("it is broken"));
  const Cluster::CliResult shown =
      Cli({"incidents", "show", std::to_string(incidents[0]["id"].get<uint64_t>())});
  EXPECT_THAT(shown.out, HasSubstr("it is broken"));
}

TEST_F(RunTest, AProgramThatFailsOnEveryNodeBlamesNoNode) {
  StartCluster(3);
  ASSERT_NO_FATAL_FAILURE(
      Run({"--nnodes", "2"}, {"sh", "-c", "echo no module named torch >&2; exit 1"}));
  const Cluster::CliResult result = Cli({"run", "--follow", "--job", "lm"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.errors, HasSubstr("the cause is the job, no node is blamed"));
  EXPECT_THAT(result.errors, HasSubstr("lm: no module named torch"));
  EXPECT_EQ(Incidents().size(), 3U);
  const json quarantined = CliJson({"quarantine"});
  EXPECT_TRUE(quarantined.is_object() && quarantined.dump().find("\"n0\"") == std::string::npos &&
              quarantined.dump().find("\"n1\"") == std::string::npos)
      << quarantined.dump(1);
}

TEST_F(RunTest, AFailedRestartCommandIsRetriedAndReported) {
  // The command fails the first time.
  const std::string file = root_ + "/commands";
  StartCluster(2, {"restart.command=echo $HOLDFAST_INCIDENT >> " + file + "; test $(wc -l < " +
                   file + ") -gt 1"});
  TrainingOptions options;
  options.world = 2;
  options.steps = 100'000;
  options.step_sleep_ms = 20;
  Training training(&*cluster_, options);
  ASSERT_TRUE(training.Start().ok());
  ASSERT_TRUE(training.AwaitStep(5, kTimeout)) << training.LogTail();
  training.KillRank(1);
  const auto commands = [&] { return ReadAll(root_ + "/commands"); };
  ASSERT_TRUE(WaitUntil([&] { return commands().size() > 2; }, kTimeout)) << commands();
  const std::string first = commands().substr(0, commands().find('\n'));
  EXPECT_EQ(commands(), first + "\n" + first + "\n") << "the same incident";
  const auto shown = [&] { return Cli({"incidents", "show", first}).out; };
  EXPECT_TRUE(WaitUntil(
      [&] { return shown().find("attempt 2: it ended with exit code 0") != std::string::npos; },
      kTimeout));
  EXPECT_THAT(shown(), HasSubstr("attempt 1: it ended with exit code 1"));
  const Cluster::CliResult settled = Cli({"incidents", "--ack", first, "--why", "an exercise"});
  EXPECT_EQ(settled.exit_code, 0) << settled.errors;
  EXPECT_THAT(shown(), HasSubstr("acknowledged: an exercise"));
  EXPECT_EQ(Cli({"incidents", "--ack", "999"}).exit_code, 4);
  training.KillAll();
}

TEST_F(RunTest, AStoppedJobHasItsLastVersionOnDisk) {
  StartCluster(3);
  ASSERT_NO_FATAL_FAILURE(RunTrainer(3, 0));
  const json before = CliJson({"status", "lm"})["jobs"][0];
  const Cluster::CliResult stopped = Cli({"stop", "lm"});
  EXPECT_EQ(stopped.exit_code, 0) << stopped.errors;
  EXPECT_TRUE(WaitUntil([&] { return Running().empty(); }, milliseconds(20'000)));
  const json after = CliJson({"status", "lm"})["jobs"][0];
  EXPECT_GE(ParseVersionId(after["disk_committed"].get<std::string>()).value(),
            ParseVersionId(before["memory_committed"].get<std::string>()).value());
  EXPECT_EQ(Cli({"stop", "lm"}).exit_code, 1) << "the run has ended";
  // The next run continues from that version.
  ASSERT_NO_FATAL_FAILURE(Run({"--nnodes", "3"}, Trainer(0)));
  ASSERT_NO_FATAL_FAILURE(AwaitFinish());
  ExpectBitIdentical(3);
}

TEST_F(RunTest, AJobOfAnotherLauncherIsRestartedByACommand) {
  StartCluster(
      3, {"restart.command=echo \"$HOLDFAST_JOB/$HOLDFAST_RANKS\" >> " + root_ + "/commands"});
  TrainingOptions options;
  options.world = 3;
  options.steps = 100'000;
  options.step_sleep_ms = 20;
  Training training(&*cluster_, options);
  ASSERT_TRUE(training.Start().ok());
  ASSERT_TRUE(training.AwaitStep(5, kTimeout)) << training.LogTail();
  training.KillRank(1);
  ASSERT_TRUE(WaitUntil([&] { return !ReadAll(root_ + "/commands").empty(); }, kTimeout));
  EXPECT_THAT(ReadAll(root_ + "/commands"), ::testing::MatchesRegex("charlm/[0-9,]*1[0-9,]*\n"));
  // The restart by the command ends the incident.
  ASSERT_TRUE(training.Start().ok());
  ASSERT_TRUE(training.AwaitStep(10, kTimeout)) << training.LogTail();
  const json answer = CliJson({"incidents", "--job", "charlm"});
  ASSERT_FALSE(answer["incidents"].empty());
  EXPECT_EQ(answer["incidents"].back()["kind"], "dead");
  EXPECT_EQ(answer["incidents"].back()["state"], "recovered");
  training.KillAll();
}

/// Live migration, a frozen cgroup, a debugger: nothing failed, so nothing is restarted.
TEST_F(RunTest, APausedProcessCausesNoRestart) {
  StartCluster(2);
  ASSERT_NO_FATAL_FAILURE(Run({"--nnodes", "2"}, {"sleep", "900"}));
  ASSERT_TRUE(WaitUntil([&] { return Running().size() == 2; }, kTimeout));
  const auto before = Running();
  const auto pause_processes = [&](const std::vector<Process*>& processes) {
    for (Process* process : processes) process->Signal(SIGSTOP);
    std::this_thread::sleep_for(milliseconds(7'000));
    for (Process* process : processes) process->Signal(SIGCONT);
    ASSERT_TRUE(WaitUntil([&] { return NodesUp() == 2; }, kTimeout));
    std::this_thread::sleep_for(milliseconds(5'000));  // time for a pending verdict
    EXPECT_EQ(Incidents(), json::array());
    const auto after = Running();
    ASSERT_EQ(after.size(), 2U);
    for (const auto& [rank, pids] : before) EXPECT_EQ(after.at(rank).worker.pid, pids.worker.pid);
    EXPECT_EQ(NodesUp(), 2U);
  };
  ASSERT_NO_FATAL_FAILURE(pause_processes({&cluster_->coordinator()}));
  ASSERT_NO_FATAL_FAILURE(pause_processes({&cluster_->agent(1)}));
  ASSERT_NO_FATAL_FAILURE(pause_processes({&cluster_->coordinator(), &cluster_->agent(0)}));
  ASSERT_NO_FATAL_FAILURE(pause_processes({&cluster_->agent(0), &cluster_->agent(1)}));
}

TEST_F(RunTest, BadRequestsAreExplained) {
  StartCluster(1);
  for (const char* name : {"quarantine", "HOLDFAST"}) {
    const Cluster::CliResult reserved = Cli({"run", "--job", name, "--", "true"});
    EXPECT_NE(reserved.exit_code, 0);
    EXPECT_THAT(reserved.errors, HasSubstr("choose another name"));
  }
  EXPECT_EQ(Cli({"stop", "unknown"}).exit_code, 4);
  EXPECT_EQ(Cli({"incidents", "show", "99"}).exit_code, 4);
  EXPECT_EQ(Cli({"quarantine", "n99"}).exit_code, 4);
  const Cluster::CliResult none = Cli({"run", "--job", "lm"});
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_THAT(none.errors, HasSubstr("no command to run"));
  const Cluster::CliResult zero = Cli({"run", "--job", "lm", "--nnodes", "0", "--", "true"});
  EXPECT_EQ(zero.exit_code, 1);
  EXPECT_THAT(zero.errors, HasSubstr("nnodes is 0"));
  const Cluster::CliResult odd = Cli({"run", "--job", "lm", "--env", "X", "--", "true"});
  EXPECT_THAT(odd.errors, HasSubstr("NAME=value"));
  EXPECT_EQ(Cli({"run", "--job", "../x", "--", "true"}).exit_code, 64);
  Run({"--nnodes", "2"}, {"true"});
  const Cluster::CliResult twice = Cli({"run", "--job", "lm", "--detach", "--", "true"});
  EXPECT_EQ(twice.exit_code, 1);
  EXPECT_THAT(twice.errors, HasSubstr("holdfast stop lm"));
}

}  // namespace
}  // namespace holdfast::local
