#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/coordinator/server/fake_agent.h"

// The real process, killed at its crash points and started again on the same data_dir.

namespace holdfast::coord {
namespace {

class Process {
 public:
  Process(const std::vector<std::string>& args, const std::string& crash, const std::string& log) {
    pid_ = ::fork();
    if (pid_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // a failed test leaves nothing behind
    int fd = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
    ::dup2(fd, 1);
    ::dup2(fd, 2);
    if (crash.empty()) {
      ::unsetenv("HOLDFAST_CRASH");
    } else {
      ::setenv("HOLDFAST_CRASH", crash.c_str(), 1);
    }
    std::vector<char*> argv;
    for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
    argv.push_back(nullptr);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  ~Process() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    Wait();
  }
  int Wait() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = 0;
    return status;
  }
  void Signal(int signal) { ::kill(pid_, signal); }

 private:
  pid_t pid_ = 0;
};

class ProcessTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* bin = ::getenv("HOLDFAST_BIN_DIR");
    binary_ = std::string(bin != nullptr ? bin : "bin") + "/holdfast-coordinator";
    if (!std::filesystem::exists(binary_)) GTEST_SKIP() << binary_ << " is not built";
    std::string pattern = (std::filesystem::temp_directory_path() / "coord-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
    endpoint_ = *ParseEndpoint("unix:" + dir_ + "/c.sock");
  }
  void TearDown() override {
    process_.reset();
    if (!dir_.empty()) std::filesystem::remove_all(dir_);
  }
  void Start(const std::string& crash = "", const std::string& listen = "") {
    process_.reset();
    process_ = std::make_unique<Process>(
        std::vector<std::string>{binary_, "--set", "cluster=test", "--set",
                                 "data_dir=" + dir_ + "/data", "--set",
                                 "listen=" + (listen.empty() ? endpoint_.ToString() : listen),
                                 "--set", "insecure_loopback=true"},
        crash, dir_ + "/log");
  }
  std::string Log() {
    std::ifstream file(dir_ + "/log");
    std::ostringstream text;
    text << file.rdbuf();
    return std::move(text).str();
  }
  static uint64_t AttachAndEpoch(FakeAgent& agent) {
    agent.Attach();
    uint64_t epoch = 0;
    EXPECT_TRUE(Eventually([&] {
      // The channel may still have used the connection of the process that was killed.
      if (agent.End()) agent.Attach();
      pb::GetStatusReply status = agent.GetStatus();
      epoch = status.epoch();
      for (const auto& node : status.nodes()) {
        if (node.node() == agent.node() && node.alive()) return true;
      }
      return false;
    }));
    return epoch;
  }

  /// Returns the committed version of the status. Waits for the connection to the new process.
  static VersionId MemoryCommitted(FakeAgent& agent, const std::string& job) {
    pb::GetStatusReply status;
    EXPECT_TRUE(Eventually([&] {
      status = agent.GetStatus(job);
      return status.jobs_size() == 1;
    }));
    return status.jobs_size() == 1 ? FromProto(status.jobs(0).memory_committed()) : VersionId{};
  }

  std::string binary_;
  std::string dir_;
  Endpoint endpoint_;
  std::unique_ptr<Process> process_;
};

TEST_F(ProcessTest, WritesItsPortAndStopsOnSigterm) {
  Start("", "127.0.0.1:0");
  const std::string path = dir_ + "/data/endpoint";
  ASSERT_TRUE(Eventually([&] { return std::filesystem::exists(path); }));
  std::ifstream file(path);
  std::string text;
  std::getline(file, text);
  auto endpoint = ParseEndpoint(text);
  ASSERT_TRUE(endpoint.has_value()) << text;
  EXPECT_NE(endpoint->port, 0);
  FakeAgent agent(*endpoint, "a");
  EXPECT_EQ(AttachAndEpoch(agent), 1U);
  EXPECT_THAT(Log(), ::testing::HasSubstr("CoordinatorListening endpoint=" + text + " epoch=1"));
  process_->Signal(SIGTERM);
  int status = process_->Wait();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

/// The record of the version is lost if the kill precedes it, and exists otherwise. In both cases
/// the agents' inventory leads to the same result.
TEST_F(ProcessTest, AfterAKillAroundTheCommitTheVersionExistsOnce) {
  for (const char* point : {"coordinator.before_commit", "coordinator.after_commit_before_reply",
                            "coordinator.after_publish"}) {
    SCOPED_TRACE(point);
    std::filesystem::remove_all(dir_ + "/data");
    Start(std::string(point) + ":2");
    FakeAgent a(endpoint_, "a");
    uint64_t epoch = AttachAndEpoch(a);
    ASSERT_TRUE(a.Join("gpt", "run", 0, 1).has_value());
    ASSERT_TRUE(a.Hold(epoch, {MakeReplica("gpt", V(1, 1), 0, 1, Tier::kMemory)}).ok());
    Status status = a.Hold(epoch, {MakeReplica("gpt", V(1, 2), 0, 1, Tier::kMemory)});
    int died = process_->Wait();
    EXPECT_TRUE(WIFSIGNALED(died) && WTERMSIG(died) == SIGKILL);
    if (std::string(point) != "coordinator.after_publish") {
      EXPECT_FALSE(status.ok());
    }

    Start();
    const bool recorded = std::string(point) != "coordinator.before_commit";
    EXPECT_EQ(MemoryCommitted(a, "gpt"), V(1, recorded ? 2 : 1));
    AttachAndEpoch(a);
    EXPECT_EQ(MemoryCommitted(a, "gpt"), V(1, 2));
    EXPECT_TRUE(Eventually([&] { return a.StateOf("gpt").committed[Tier::kMemory] == V(1, 2); }));
  }
}

TEST_F(ProcessTest, AfterAKillOnAJoinTheRunKeepsItsIncarnation) {
  Start("coordinator.after_join:2");
  FakeAgent a(endpoint_, "a");
  AttachAndEpoch(a);
  EXPECT_EQ(a.Join("gpt", "run-1", 0, 1).value(), 1U);
  EXPECT_FALSE(a.Join("gpt", "run-2", 0, 1).has_value());
  process_->Wait();
  Start();
  AttachAndEpoch(a);
  EXPECT_EQ(a.Join("gpt", "run-2", 0, 1).value(), 2U);
  EXPECT_EQ(a.Join("gpt", "run-1", 0, 1).error().code(), ErrorCode::kFenced);
}

TEST_F(ProcessTest, ARestoreDecisionSurvivesAKill) {
  Start("coordinator.restore_decided");
  FakeAgent a(endpoint_, "a");
  uint64_t epoch = AttachAndEpoch(a);
  ASSERT_TRUE(a.Join("gpt", "run-1", 0, 1).has_value());
  ASSERT_TRUE(a.Hold(epoch, {MakeReplica("gpt", V(1, 3), 0, 1, Tier::kMemory),
                             MakeReplica("gpt", V(1, 3), 0, 1, Tier::kDisk)})
                  .ok());
  ASSERT_TRUE(a.Join("gpt", "run-2", 0, 1).has_value());
  Result<pb::DecideRestoreReply> reply = Fail(Status());
  std::thread caller([&] { reply = a.Decide("gpt", 2, 0); });
  ASSERT_TRUE(Eventually([&] { return !a.PrepareDirectives().empty(); }));
  pb::ReportRequest report = a.NewReport(epoch);
  ToProto(Prepared{a.PrepareDirectives()[0].request.value(), Status::Ok()}, report.add_prepared());
  (void)a.Report(report);
  process_->Wait();
  caller.join();
  EXPECT_FALSE(reply.has_value());

  Start();
  epoch = AttachAndEpoch(a);
  ASSERT_TRUE(Eventually([&] { return a.StateOf("gpt").restore == V(1, 3); }));
  const size_t directives = a.PrepareDirectives().size();
  std::thread again([&] { reply = a.Decide("gpt", 2, 0); });
  ASSERT_TRUE(Eventually([&] { return a.PrepareDirectives().size() > directives; }));
  report = a.NewReport(epoch);
  ToProto(Prepared{a.PrepareDirectives().back().request.value(), Status::Ok()},
          report.add_prepared());
  EXPECT_TRUE(a.Report(report).ok());
  again.join();
  ASSERT_TRUE(reply.has_value()) << reply.error().ToString();
  EXPECT_EQ(FromProto(reply->version()), V(1, 3));
}

}  // namespace
}  // namespace holdfast::coord
