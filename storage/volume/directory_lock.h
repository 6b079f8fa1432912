#pragma once

#include <memory>
#include <vector>

#include "base/fd.h"
#include "storage/io/block_file.h"

namespace holdfast {

/// Prevents a second process from opening the same data directories: its recovery would delete the
/// first one's unfinished files. The lock is held until this object is destroyed or the process
/// ends. Directories outside the real file system (simulated ones) are not locked.
class DirectoryLock {
 public:
  /// Locks all `dirs`. FailedPrecondition when another volume has one of them open.
  static Result<DirectoryLock> Acquire(const std::vector<std::unique_ptr<Directory>>& dirs);

 private:
  std::vector<UniqueFd> held_;
};

}  // namespace holdfast
