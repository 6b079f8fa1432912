// The owners of the files of jobs, with and without the capabilities that the agent needs for that.
#include "agent/server/file_owners.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <functional>

namespace holdfast::agent {
namespace {
using ::testing::HasSubstr;
constexpr uid_t kOwner = 4711;

/// Returns the exit code of `body` in a child process with only the capabilities in `kept`.
int WithCapabilities(uint32_t kept, const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    std::array<__user_cap_data_struct, 2> data{};
    data[0].effective = kept;
    data[0].permitted = kept;
    ::_exit(::syscall(SYS_capset, &header, data.data()) == 0 ? body() : 99);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

TEST(FileOwners, FilesBelongToTheUserOfTheJobWhereTheAgentMaySetThat) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root has the capabilities";
  coord::JobOwners owners;
  owners.Set("theirs", kOwner);
  owners.Set("own", ::geteuid());
  owners.Set("unknown", {});
  FileOwners files(owners, 60);
  EXPECT_EQ(files.Of("theirs").user, kOwner);
  EXPECT_EQ(files.Of("theirs").group, gid_t{60});
  for (const char* job : {"own", "unknown", "absent"}) {
    EXPECT_EQ(files.Of(job).user, std::nullopt) << job;
    EXPECT_EQ(files.Of(job).group, gid_t{60}) << job;
  }
  const uint32_t change = CAP_TO_MASK(CAP_CHOWN);
  const uint32_t read = CAP_TO_MASK(CAP_DAC_OVERRIDE);
  const auto gives = [&owners] {
    FileOwners limited(owners, {});
    return limited.Of("theirs").user ? 1 : 0;
  };
  EXPECT_EQ(WithCapabilities(change | read, gives), 1);
  EXPECT_EQ(WithCapabilities(change, gives), 0) << "the agent could not read the files again";
  EXPECT_EQ(WithCapabilities(read, gives), 0);
}

TEST(FileOwners, AGroupMustExistAndBeOneThatTheAgentMaySet) {
  EXPECT_EQ(FindFileGroup("").value(), std::nullopt);
  EXPECT_THAT(FindFileGroup("no-such-group").error().message(),
              HasSubstr("files.group: no group 'no-such-group' exists"));
  if (::geteuid() != 0) return;
  EXPECT_EQ(FindFileGroup("games").value(), gid_t{60});
  const int code = WithCapabilities(0, [] {
    const auto refused = FindFileGroup("games");
    if (refused || refused.error().message().find("CAP_CHOWN") == std::string::npos) return 1;
    return FindFileGroup("root") ? 0 : 2;
  });
  EXPECT_EQ(code, 0);
}

}  // namespace
}  // namespace holdfast::agent
