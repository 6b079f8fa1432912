#pragma once

#include <memory>
#include <vector>

#include "storage/base/fd.h"
#include "storage/io/block_file.h"

namespace holdfast {

/// Keeps a second process from opening the same data directories: it would drop the first one's
/// unfinished files. Held until destroyed, by the process's death too. Directories that are not on
/// the real file system (simulated ones) need none.
class DirectoryLock {
 public:
  /// FailedPrecondition when another volume has one of them open.
  static Result<DirectoryLock> Acquire(const std::vector<std::unique_ptr<Directory>>& dirs);

 private:
  std::vector<UniqueFd> held_;
};

}  // namespace holdfast
