// Workers of other users: who may start them, and what a user can do with the files of a launch.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <functional>

#include "agent/workers/worker_files.h"
#include "agent/workers/worker_user.h"

namespace holdfast::agent {
namespace {
using ::testing::HasSubstr;
namespace fs = std::filesystem;
constexpr uid_t kBin = 2;

class WorkerUserTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
    std::string name = "/tmp/hfu.XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    root_ = name;
    ASSERT_EQ(::chmod(root_.c_str(), 0755), 0);
  }
  void TearDown() override {
    std::error_code ignored;
    if (!root_.empty()) fs::remove_all(root_, ignored);
  }
  /// Returns the exit code of `body` in a child process.
  static int InChild(const std::function<int()>& body) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(body());
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
  }
  static uint32_t Capabilities() {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    std::array<__user_cap_data_struct, 2> data{};
    ::syscall(SYS_capget, &header, data.data());
    return data[0].effective | data[0].permitted | data[0].inheritable;
  }
  std::string root_;
};

TEST_F(WorkerUserTest, AccountsAreFoundByNumberAndName) {
  const auto bin = FindWorkerUser(kBin);
  ASSERT_TRUE(bin) << bin.error().ToString();
  EXPECT_EQ(bin->name, "bin");
  EXPECT_EQ(bin->home, "/bin");
  EXPECT_THAT(bin->groups, ::testing::Contains(bin->gid));
  EXPECT_EQ(FindWorkerUser(std::string("bin"))->uid, kBin);
  EXPECT_THAT(FindWorkerUser(54'321).error().message(), HasSubstr("no user with uid 54321"));
}

TEST_F(WorkerUserTest, AUserBecomesItselfOnly) {
  EXPECT_TRUE(CheckMayRunAs(*FindWorkerUser(kBin)).ok()) << "root may";
  const int code = InChild([] {
    const auto bin = FindWorkerUser(kBin);
    const auto games = FindWorkerUser(std::string("games"));
    if (!BecomeUser(bin->uid, bin->gid, bin->groups.data(), bin->groups.size())) return 1;
    if (!CheckMayRunAs(*bin).ok()) return 2;
    const Status refused = CheckMayRunAs(*games);
    if (refused.code() != ErrorCode::kPermissionDenied) return 3;
    if (refused.message().find("CAP_SETUID") == std::string::npos) return 4;
    if (::syscall(SYS_setuid, 0) == 0 || ::syscall(SYS_setgroups, 0, nullptr) == 0) return 5;
    return Capabilities() == 0 ? 0 : 6;
  });
  EXPECT_EQ(code, 0);
}

/// An agent that is not root and has capabilities: its workers must not inherit them.
TEST_F(WorkerUserTest, CapabilitiesOfTheAgentEndWithTheChange) {
  const int code = InChild([] {
    ::prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0);
    if (::setresgid(1, 1, 1) != 0 || ::setresuid(1, 1, 1) != 0) return 1;
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    std::array<__user_cap_data_struct, 2> data{};
    const uint32_t mask = CAP_TO_MASK(CAP_SETUID) | CAP_TO_MASK(CAP_SETGID);
    data[0] = {mask, mask, mask};
    if (::syscall(SYS_capset, &header, data.data()) != 0) return 2;
    ::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_SETUID, 0, 0);
    const auto bin = FindWorkerUser(kBin);
    if (!CheckMayRunAs(*bin).ok()) return 3;
    if (!BecomeUser(bin->uid, bin->gid, bin->groups.data(), bin->groups.size())) return 4;
    if (::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, CAP_SETUID, 0, 0) != 0) return 5;
    if (Capabilities() != 0) return 6;
    return ::syscall(SYS_setuid, 1) == 0 ? 7 : 0;
  });
  EXPECT_EQ(code, 0);
}

TEST_F(WorkerUserTest, LogsBelongToTheUserAndAreFilesOfTheUserAlone) {
  const std::string path = root_ + "/rank-0.log";
  ASSERT_TRUE(OpenLog(path, kBin));
  struct stat info {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, kBin);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
  EXPECT_TRUE(OpenLog(path, kBin)) << "again";
  EXPECT_FALSE(OpenLog(path, 5)) << "a file of a third user";
  // A user can put a link or another file in the place of the log.
  const std::string target = root_ + "/of-root";
  std::ofstream(target) << "root's";
  const std::string at = root_ + "/rank-1.log";
  fs::create_symlink(target, at);
  EXPECT_FALSE(OpenLog(at, kBin)) << "a link";
  fs::remove(at);
  fs::create_hard_link(target, at);
  EXPECT_FALSE(OpenLog(at, kBin)) << "another name of a file of root";
  fs::remove(at);
  ASSERT_EQ(::mkfifo(at.c_str(), 0666), 0);
  EXPECT_FALSE(OpenLog(at, kBin)) << "a FIFO";
  fs::remove(at);
  ASSERT_EQ(::stat(target.c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, 0U) << "root's file stays root's";
}

}  // namespace
}  // namespace holdfast::agent
