#include "storage/volume/directory_lock.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>

namespace holdfast {

Result<DirectoryLock> DirectoryLock::Acquire(const std::vector<std::unique_ptr<Directory>>& dirs) {
  DirectoryLock lock;
  for (const auto& dir : dirs) {
    UniqueFd fd(::open(dir->path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd.valid()) continue;
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) return Fail(ErrnoStatus(errno, "lock " + dir->path()));
      return Fail(FailedPreconditionError(
          "data directory " + dir->path() +
          " is in use by another agent, or listed twice: give each agent its own"));
    }
    lock.held_.push_back(std::move(fd));
  }
  return lock;
}

}  // namespace holdfast
