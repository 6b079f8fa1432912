#include "agent/workers/manager.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/clock.h"

namespace holdfast::agent {
namespace {
using std::chrono::milliseconds;
using ::testing::HasSubstr;
constexpr milliseconds kTimeout(20'000);

template <typename Condition>
bool Await(const Condition& condition) {
  const auto deadline = Clock::Real().Now() + kTimeout;
  while (!condition()) {
    if (Clock::Real().Now() > deadline) return false;
    Clock::Real().SleepFor(milliseconds(5));
  }
  return true;
}

/// Starts real processes with the real shim.
class WorkerManagerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = "/tmp/hfw.XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    root_ = name;
    options_.folder = root_ + "/workers";
    options_.log_folder = root_ + "/log";
    options_.agent_socket = root_ + "/agent.sock";
    options_.shim = std::string(std::getenv("HOLDFAST_BIN_DIR")) + "/holdfast-shim";
    options_.kill_timeout_ms = 5'000;
    Open();
  }
  void TearDown() override {
    if (manager_ != nullptr) {
      for (const WorkerState& worker : manager_->Workers()) StopJob(worker.job, 0);
      EXPECT_TRUE(Await([&] { return manager_->Workers().empty(); }));
    }
    manager_.reset();
    std::filesystem::remove_all(root_);
  }
  void Open() {
    auto opened = WorkerManager::Open(
        options_, [] {}, Clock::Real());
    ASSERT_TRUE(opened.has_value()) << opened.error().ToString();
    manager_ = *std::move(opened);
  }

  SetWorkers Shell(const std::string& script, uint32_t ranks = 1) const {
    SetWorkers wanted;
    wanted.job = "job";
    wanted.run_id = "run-1.1";
    wanted.first_rank = Rank{4};
    wanted.ranks = ranks;
    wanted.world = 8;
    wanted.node_rank = 2;
    wanted.nodes = 4;
    wanted.master_address = "10.0.0.1";
    wanted.master_port = 20123;
    wanted.restarts = 3;
    wanted.restarts_max = 9;
    wanted.command = {"/bin/sh", "-c", script};
    wanted.directory = root_;
    wanted.grace_ms = 200;
    wanted.uid = ::geteuid();
    return wanted;
  }
  void StopJob(const std::string& job, int64_t grace_ms) {
    SetWorkers none;
    none.job = job;
    none.grace_ms = grace_ms;
    manager_->SetWanted(none);
  }
  WorkerState AwaitEnd(uint32_t rank = 4) {
    WorkerState status;
    EXPECT_TRUE(Await([&] {
      for (const WorkerState& worker : manager_->Workers()) {
        if (worker.rank.value != rank || worker.phase != WorkerPhase::kEnded) continue;
        status = worker;
        return true;
      }
      return false;
    }));
    return status;
  }
  pid_t AwaitPid(uint32_t rank = 4) {
    pid_t pid = 0;
    EXPECT_TRUE(Await([&] {
      for (const WorkerState& worker : manager_->Workers()) {
        if (worker.rank.value == rank && worker.phase == WorkerPhase::kRunning)
          pid = static_cast<pid_t>(worker.pid);
      }
      return pid != 0;
    }));
    return pid;
  }
  static mode_t ModeOf(const std::string& path) {
    struct stat info {};
    EXPECT_EQ(::stat(path.c_str(), &info), 0) << path;
    return info.st_mode & 07777U;
  }
  /// Returns whether a process of another user can read the file.
  static bool OthersRead(const std::string& path) {
    const pid_t child = ::fork();
    if (child == 0) {
      const bool dropped =
          ::setgroups(0, nullptr) == 0 && ::setgid(65534) == 0 && ::setuid(65534) == 0;
      ::_exit(!dropped ? 2 : ::open(path.c_str(), O_RDONLY | O_CLOEXEC) >= 0 ? 0 : 1);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_NE(WEXITSTATUS(status), 2) << "could not become another user";
    return WEXITSTATUS(status) == 0;
  }
  std::string Read(const std::string& path) const {
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  static bool Runs(pid_t pid) { return StartTicksOf(pid) != 0; }

  std::string root_;
  WorkerManagerOptions options_;
  std::unique_ptr<WorkerManager> manager_;
};

TEST_F(WorkerManagerTest, OtherUsersCannotReadEnvironmentsAndLogs) {
  options_.worker_umask = 027;
  manager_.reset();
  Open();
  ASSERT_EQ(::chmod(root_.c_str(), 0755), 0);
  SetWorkers wanted = Shell("echo key-$KEY; umask > umask; exec sleep 100");
  wanted.environment = {"KEY=secret"};
  manager_->SetWanted(wanted);
  AwaitPid();
  ASSERT_TRUE(Await([&] { return Read(root_ + "/umask") == "0027\n"; }))
      << "workers have the umask that the agent was started with";
  const std::string spec = root_ + "/workers/job/rank-4/spec";
  const std::string log = root_ + "/log/job/run-1.1/rank-4.log";
  ASSERT_THAT(Read(spec), HasSubstr("secret"));
  ASSERT_TRUE(Await([&] { return Read(log) == "key-secret\n"; }));
  for (const std::string& file : {spec, root_ + "/workers/job/rank-4/pid", log}) {
    EXPECT_EQ(ModeOf(file), 0600U) << file;
  }
  for (const char* folder :
       {"/workers", "/workers/job", "/workers/job/rank-4", "/log/job/run-1.1"}) {
    EXPECT_EQ(ModeOf(root_ + folder), 0700U) << folder;
  }
  // Users reach the folders of their launches, and list no others.
  for (const char* folder : {"/log", "/log/job"}) EXPECT_EQ(ModeOf(root_ + folder), 0711U);
  if (::geteuid() != 0) return;  // cannot become another user
  EXPECT_FALSE(OthersRead(spec));
  EXPECT_FALSE(OthersRead(log));
  ASSERT_EQ(::chmod((root_ + "/umask").c_str(), 0644), 0);
  EXPECT_TRUE(OthersRead(root_ + "/umask")) << "the check itself works";
}

TEST_F(WorkerManagerTest, AWorkerRunsAsTheUserOfTheRun) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can start processes of other users";
  ASSERT_EQ(::chmod(root_.c_str(), 0755), 0);
  SetWorkers wanted = Shell("id -u; id -g; env; exec sleep 100");
  wanted.uid = 2;
  wanted.directory = "/";
  manager_->SetWanted(wanted);
  AwaitPid();
  const std::string log = root_ + "/log/job/run-1.1/rank-4.log";
  ASSERT_TRUE(Await([&] { return Read(log).find("RANK=") != std::string::npos; })) << Read(log);
  EXPECT_THAT(Read(log), ::testing::StartsWith("2\n2\n"));
  EXPECT_THAT(Read(log), HasSubstr("\nHOME=/bin\n"));
  EXPECT_THAT(Read(log), ::testing::Not(HasSubstr("HOLDFAST_BIN_DIR")))
      << "the agent's variables are not those of other users";
  struct stat info {};
  ASSERT_EQ(::stat(log.c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, 2U);
  ASSERT_EQ(::stat((root_ + "/log/job/run-1.1").c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, 2U);
  EXPECT_EQ(info.st_mode & 0777, 0700U);
}

TEST_F(WorkerManagerTest, WorkersWithoutAUserOrOfAnUnknownOneAreRefused) {
  for (const std::optional<uint32_t> uid : {std::optional<uint32_t>(), {54'321}}) {
    SetWorkers wanted = Shell("true");
    wanted.run_id = uid ? "run-2" : "run-1";
    wanted.uid = uid;
    manager_->SetWanted(wanted);
    const auto refused = [&] {
      const auto workers = manager_->Workers();
      return workers.size() == 1 && workers[0].run_id == wanted.run_id &&
             workers[0].phase == WorkerPhase::kEnded;
    };
    ASSERT_TRUE(Await(refused));
    EXPECT_EQ(manager_->Workers()[0].exit_code, 126);
    EXPECT_THAT(manager_->Workers()[0].last_lines,
                HasSubstr(uid ? "no user with uid 54321" : "workers.default_user"));
  }
}

TEST_F(WorkerManagerTest, AFolderOfAnEarlierReleaseLosesItsOpenMode) {
  manager_.reset();
  ASSERT_EQ(::chmod(options_.folder.c_str(), 0755), 0);
  Open();
  EXPECT_EQ(ModeOf(options_.folder), 0700U);
}

TEST_F(WorkerManagerTest, WorkersGetTorchrunsVariables) {
  SetWorkers wanted = Shell("env > env.$LOCAL_RANK", 2);
  wanted.environment = {"MINE=1", "RANK=77"};
  manager_->SetWanted(wanted);
  EXPECT_EQ(AwaitEnd(4).exit_code, 0);
  EXPECT_EQ(AwaitEnd(5).exit_code, 0);
  const std::string env = "\n" + Read(root_ + "/env.1");
  for (const char* line :
       {"RANK=5", "LOCAL_RANK=1", "GROUP_RANK=2", "ROLE_RANK=5", "ROLE_NAME=default",
        "WORLD_SIZE=8", "LOCAL_WORLD_SIZE=2", "GROUP_WORLD_SIZE=4", "ROLE_WORLD_SIZE=8",
        "MASTER_ADDR=10.0.0.1", "MASTER_PORT=20123", "TORCHELASTIC_RESTART_COUNT=3",
        "TORCHELASTIC_MAX_RESTARTS=9", "TORCHELASTIC_RUN_ID=run-1.1",
        "TORCHELASTIC_USE_AGENT_STORE=False", "HOLDFAST_JOB=job", "HOLDFAST_RUN_ID=run-1.1",
        "MINE=1", "OMP_NUM_THREADS=1"}) {
    EXPECT_THAT(env, HasSubstr("\n" + std::string(line) + "\n"));
  }
  EXPECT_THAT(env, HasSubstr("\nHOLDFAST_SOCKET=" + options_.agent_socket + "\n"));
  EXPECT_THAT(env, HasSubstr("\nTORCHELASTIC_ERROR_FILE=" + root_));
}

TEST_F(WorkerManagerTest, TheExitAndTheLastOutputOfAWorkerAreKept) {
  manager_->SetWanted(Shell("echo one; echo two >&2; exit 7"));
  const WorkerState status = AwaitEnd();
  EXPECT_EQ(status.exit_code, 7);
  EXPECT_EQ(status.signal, 0);
  EXPECT_EQ(status.last_lines, "one\ntwo\n");
  EXPECT_EQ(manager_->ReadLog("job", "run-1.1", Rank{4}, 4, 100).value_or("?"), "two\n");
  EXPECT_EQ(manager_->ReadLog("job", "run-1.1", Rank{9}, 0, 100).error().code(),
            ErrorCode::kNotFound);
  EXPECT_EQ(manager_->ReadLog("..", "run-1.1", Rank{4}, 0, 100).error().code(),
            ErrorCode::kInvalidArgument);
}

TEST_F(WorkerManagerTest, TheEndOfLongOutputIsKept) {
  manager_->SetWanted(Shell("seq 100000; exit 1"));
  const WorkerState status = AwaitEnd();
  EXPECT_LE(status.last_lines.size(), kLastLinesBytesMax);
  EXPECT_THAT(status.last_lines, ::testing::EndsWith("\n99999\n100000\n"));
  EXPECT_EQ(status.last_lines.front(), '9') << "begins at the start of a line";
}

TEST_F(WorkerManagerTest, TheSignalThatEndedAWorkerIsReported) {
  manager_->SetWanted(Shell("kill -SEGV $$"));
  EXPECT_EQ(AwaitEnd().signal, SIGSEGV);
}

TEST_F(WorkerManagerTest, AMissingCommandIsReported) {
  SetWorkers wanted = Shell("");
  wanted.command = {"no-such-program"};
  manager_->SetWanted(wanted);
  const WorkerState status = AwaitEnd();
  EXPECT_EQ(status.exit_code, 127);
  EXPECT_THAT(status.last_lines, HasSubstr("cannot run no-such-program"));
}

TEST_F(WorkerManagerTest, ChildrenThatAWorkerLeavesAreKilled) {
  manager_->SetWanted(Shell("sleep 1000 & echo $! > child; exit 1"));
  AwaitEnd();
  const pid_t child = static_cast<pid_t>(std::stol(Read(root_ + "/child")));
  EXPECT_TRUE(Await([&] { return !Runs(child); }));
}

TEST_F(WorkerManagerTest, AStopSendsSigtermFirst) {
  manager_->SetWanted(
      Shell("trap 'echo asked; exit 0' TERM; echo up; while :; do sleep 0.01; done"));
  AwaitPid();
  const std::string log = root_ + "/log/job/run-1.1/rank-4.log";
  ASSERT_TRUE(Await([&] { return Read(log) == "up\n"; }));
  StopJob("job", 10'000);
  EXPECT_TRUE(Await([&] { return manager_->Workers().empty(); }));
  EXPECT_THAT(Read(log), ::testing::EndsWith("asked\n"));  // the shell may have written more
}

TEST_F(WorkerManagerTest, AWorkerThatIgnoresSigtermIsKilled) {
  manager_->SetWanted(Shell("trap '' TERM; echo up; while :; do sleep 0.01; done"));
  const pid_t pid = AwaitPid();
  ASSERT_TRUE(Await([&] { return Read(root_ + "/log/job/run-1.1/rank-4.log") == "up\n"; }));
  StopJob("job", 50);
  EXPECT_TRUE(Await([&] { return manager_->Workers().empty(); }));
  EXPECT_FALSE(Runs(pid));
}

TEST_F(WorkerManagerTest, AStoppedProcessIsKilled) {
  manager_->SetWanted(Shell("while :; do sleep 0.01; done"));
  const pid_t pid = AwaitPid();
  ::kill(pid, SIGSTOP);
  StopJob("job", 50);
  EXPECT_TRUE(Await([&] { return manager_->Workers().empty(); }));
  EXPECT_FALSE(Runs(pid));
}

TEST_F(WorkerManagerTest, AWorkerWithoutItsProcessGroupIsKilled) {
  manager_->SetWanted(Shell("while :; do sleep 0.01; done"));
  const pid_t started = AwaitPid();
  manager_.reset();
  const pid_t child = ::fork();
  if (child == 0) {
    for (;;) ::pause();
  }
  const std::string folder = root_ + "/workers/job/rank-4";
  const auto pids = ReadPids(folder);
  ASSERT_TRUE(pids.has_value());
  ASSERT_TRUE(WritePids(folder, {NameProcess(child), pids->shim}).ok());
  Open();
  StopJob("job", 0);
  int status = 0;
  const bool ended = Await([&] { return ::waitpid(child, &status, WNOHANG) == child; });
  EXPECT_TRUE(ended);
  if (!ended) ::kill(child, SIGKILL);
  ::kill(-started, SIGKILL);
}

TEST_F(WorkerManagerTest, TheNextLaunchStartsAfterTheEndOfTheLast) {
  // Each worker holds the lock until it ends: two concurrent workers would be detected.
  const std::string script =
      "trap '' TERM; exec 9>lock; flock -n 9 || { echo both >> clash; exit 9; }; "
      "echo $HOLDFAST_RUN_ID >> order; while :; do sleep 0.01; done";
  manager_->SetWanted(Shell(script));
  ASSERT_TRUE(Await([&] { return Read(root_ + "/order") == "run-1.1\n"; }));
  SetWorkers next = Shell(script);
  next.run_id = "run-1.2";
  manager_->SetWanted(next);
  EXPECT_TRUE(Await([&] { return Read(root_ + "/order") == "run-1.1\nrun-1.2\n"; }));
  EXPECT_EQ(Read(root_ + "/clash"), "");
}

TEST_F(WorkerManagerTest, ARestartedAgentAdoptsItsWorkers) {
  manager_->SetWanted(Shell("while [ ! -e go ]; do sleep 0.01; done; echo end; exit 5"));
  const pid_t pid = AwaitPid();
  manager_.reset();
  ASSERT_TRUE(Runs(pid));
  Open();
  const std::vector<WorkerState> adopted = manager_->Workers();
  ASSERT_EQ(adopted.size(), 1U);
  EXPECT_EQ(adopted[0].pid, static_cast<uint32_t>(pid));
  EXPECT_EQ(adopted[0].run_id, "run-1.1");
  manager_->SetWanted(Shell("exit 1"));  // the same launch, so the worker stays
  std::ofstream(root_ + "/go").put('\n');
  const WorkerState status = AwaitEnd();
  EXPECT_EQ(status.exit_code, 5);
  EXPECT_EQ(status.last_lines, "end\n");
}

TEST_F(WorkerManagerTest, AnEndWhileNoAgentRanIsReported) {
  manager_->SetWanted(Shell("while [ ! -e go ]; do sleep 0.01; done; exit 5"));
  const pid_t pid = AwaitPid();
  manager_.reset();
  std::ofstream(root_ + "/go").put('\n');
  ASSERT_TRUE(Await([&] { return !Runs(pid); }));
  Open();
  EXPECT_EQ(AwaitEnd().exit_code, 5);
}

TEST_F(WorkerManagerTest, AWorkerDiesWithItsShim) {
  manager_->SetWanted(Shell("while :; do sleep 0.01; done"));
  const pid_t pid = AwaitPid();
  const auto pids = ReadPids(root_ + "/workers/job/rank-4");
  ASSERT_TRUE(pids.has_value());
  ::kill(pids->shim.pid, SIGKILL);
  EXPECT_EQ(AwaitEnd().signal, SIGKILL);
  EXPECT_TRUE(Await([&] { return !Runs(pid); }));
}

TEST_F(WorkerManagerTest, GarbageInTheFoldersIsIgnored) {
  manager_.reset();
  for (const char* text : {"", "{", "[1]", "{\"job\": 3}"}) {
    const std::string folder =
        root_ + "/workers/x/rank-" + std::to_string(std::string(text).size());
    std::filesystem::create_directories(folder);
    std::ofstream(folder + "/spec") << text;
    std::ofstream(folder + "/pid") << text;
  }
  Open();
  EXPECT_TRUE(manager_->Workers().empty());
}

TEST_F(WorkerManagerTest, AnIncompleteSpecIsIgnored) {
  manager_.reset();
  const std::vector<std::string> texts = {
      R"({"job": "x"})",
      R"({"job": "x", "run_id": "run-1.1", "rank": 1, "command": ["/bin/true"]})",
      R"({"job": "x", "run_id": "run-1.1", "rank": 2, "command": [], "environment": [],
          "directory": "/", "log": "/dev/null"})"};
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::string folder = root_ + "/workers/x/rank-" + std::to_string(i);
    std::filesystem::create_directories(folder);
    std::ofstream(folder + "/spec") << texts[i];
    const auto spec = ReadSpec(folder);
    ASSERT_FALSE(spec.has_value()) << texts[i];
    EXPECT_EQ(spec.error().code(), ErrorCode::kDataLoss) << texts[i];
  }
  Open();
  EXPECT_TRUE(manager_->Workers().empty());
}

}  // namespace
}  // namespace holdfast::agent
