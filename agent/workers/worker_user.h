#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/status.h"

namespace holdfast::agent {

/// A user of this machine, as far as a worker needs it.
struct WorkerUser {
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<gid_t> groups;
  std::string name;
  std::string home;
  std::string shell;
};

/// Looks the user up in the machine's accounts. NotFound: there is no such user here.
Result<WorkerUser> FindWorkerUser(uid_t uid);
/// The same, by the name.
Result<WorkerUser> FindWorkerUser(const std::string& name);
/// Returns PermissionDenied, with the remedy, if this process cannot start processes of the user.
Status CheckMayRunAs(const WorkerUser& user);

/// Makes this process one of the user: groups, IDs, and no capability. Between fork() and execve();
/// takes no lock. Returns false, with errno, if the kernel refuses.
bool BecomeUser(uid_t uid, gid_t gid, const gid_t* groups, size_t count);

}  // namespace holdfast::agent
