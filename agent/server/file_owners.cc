#include "agent/server/file_owners.h"

#include <fmt/format.h>
#include <grp.h>
#include <linux/capability.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/capabilities.h"
#include "base/log.h"

namespace holdfast::agent {
namespace {

bool IsMember(gid_t group) {
  const int count = ::getgroups(0, nullptr);
  std::vector<gid_t> groups(static_cast<size_t>(std::max(count, 0)));
  if (::getgroups(static_cast<int>(groups.size()), groups.data()) < 0) return false;
  groups.push_back(::getegid());
  return std::find(groups.begin(), groups.end(), group) != groups.end();
}

}  // namespace

Result<std::optional<gid_t>> FindFileGroup(const std::string& name) {
  if (name.empty()) return std::optional<gid_t>();
  std::array<char, 65'536> buffer{};
  group entry{};
  group* found = nullptr;
  ::getgrnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found);
  if (found == nullptr) {
    return Fail(InvalidArgumentError(
        fmt::format("files.group: no group '{}' exists on this machine", name)));
  }
  if (!IsMember(found->gr_gid) && !HasCapability(CAP_CHOWN)) {
    return Fail(InvalidArgumentError(
        fmt::format("files.group: the agent runs as uid {}, which is not in the group '{}'; add "
                    "the user to the group, or give the agent's unit CAP_CHOWN",
                    ::geteuid(), name)));
  }
  return std::optional<gid_t>(found->gr_gid);
}

FileOwners::FileOwners(const coord::JobOwners& owners, std::optional<gid_t> group)
    : owners_(owners),
      group_(group),
      // Without CAP_DAC_OVERRIDE the agent could not read the files back.
      may_give_(HasCapability(CAP_CHOWN) && HasCapability(CAP_DAC_OVERRIDE)) {}

FileAccess FileOwners::Of(const std::string& job) {
  FileAccess access;
  access.group = group_;
  const coord::JobOwner owner = owners_.Find(job);
  if (!owner.uid || *owner.uid == ::geteuid()) return access;
  if (may_give_) {
    access.user = owner.uid;
    return access;
  }
  MutexLock lock(mutex_);
  if (kept_jobs_.insert(job).second) {
    Log(LogLevel::kWarn, "FilesKept",
        {Kv("job", job), Kv("owner", *owner.uid), Kv("user", ::geteuid()),
         Kv("why", "the agent has no CAP_CHOWN and CAP_DAC_OVERRIDE"),
         Kv("effect", "the files of the job belong to the agent's user"),
         Kv("action", "docs/security.md: who owns the files of versions")});
  }
  return access;
}

}  // namespace holdfast::agent
