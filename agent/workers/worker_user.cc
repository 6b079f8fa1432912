#include "agent/workers/worker_user.h"

#include <fmt/format.h>
#include <grp.h>
#include <linux/capability.h>
#include <pwd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "base/capabilities.h"

namespace holdfast::agent {
namespace {
constexpr int kGroupsMax = 65'536;

WorkerUser UserOf(const passwd& entry) {
  WorkerUser user{entry.pw_uid, entry.pw_gid, {}, entry.pw_name, entry.pw_dir, entry.pw_shell};
  int count = 64;
  user.groups.resize(static_cast<size_t>(count));
  while (::getgrouplist(entry.pw_name, entry.pw_gid, user.groups.data(), &count) < 0 &&
         count <= kGroupsMax && count > static_cast<int>(user.groups.size())) {
    user.groups.resize(static_cast<size_t>(count));
  }
  user.groups.resize(static_cast<size_t>(count));
  if (user.home.empty()) user.home = "/";
  if (user.shell.empty()) user.shell = "/bin/sh";
  return user;
}
}  // namespace

Result<WorkerUser> FindWorkerUser(uid_t uid) {
  std::array<char, 16'384> buffer{};
  passwd entry{};
  passwd* found = nullptr;
  ::getpwuid_r(uid, &entry, buffer.data(), buffer.size(), &found);
  if (found != nullptr) return UserOf(*found);
  return Fail(NotFoundError(fmt::format(
      "no user with uid {} exists on this node, so no worker can run as that user; create the "
      "user with the same uid on every node",
      uid)));
}

Result<WorkerUser> FindWorkerUser(const std::string& name) {
  std::array<char, 16'384> buffer{};
  passwd entry{};
  passwd* found = nullptr;
  ::getpwnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found);
  if (found != nullptr) return UserOf(*found);
  return Fail(NotFoundError(fmt::format("no user '{}' exists on this node", name)));
}

Status CheckMayRunAs(const WorkerUser& user) {
  if (user.uid == ::geteuid()) return Status::Ok();
  if (HasCapability(CAP_SETUID) && HasCapability(CAP_SETGID)) return Status::Ok();
  return PermissionDeniedError(fmt::format(
      "the agent runs as uid {} and may not start workers of user {} (uid {}); run holdfast-agent "
      "as root, or give its unit CAP_SETUID and CAP_SETGID (docs/security.md)",
      ::geteuid(), user.name, user.uid));
}

bool BecomeUser(uid_t uid, gid_t gid, const gid_t* groups, size_t count) {
  // The raw calls change this thread only, which is the only one after a fork().
  if (::syscall(SYS_setgroups, count, groups) != 0) return false;
  if (::syscall(SYS_setresgid, gid, gid, gid) != 0) return false;
  if (::syscall(SYS_setresuid, uid, uid, uid) != 0) return false;
  // An agent that is not root keeps its capabilities through the calls above.
  ::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, 2> none{};
  if (uid != 0 && ::syscall(SYS_capset, &header, none.data()) != 0) return false;
  return ::getuid() == uid && ::geteuid() == uid && ::getegid() == gid;
}

}  // namespace holdfast::agent
