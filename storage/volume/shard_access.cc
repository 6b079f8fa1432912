#include "storage/volume/shard_access.h"

#include "base/log.h"

namespace holdfast {

Result<FileAccess> ShardAccess::Give(Directory& dir, const std::string& path,
                                     const std::string& job, const FileAccess& access) {
  const Status set = dir.SetAccess(path, access);
  if (set.ok()) return access;
  const bool refused = set.code() == ErrorCode::kPermissionDenied ||
                       set.code() == ErrorCode::kUnsupported ||
                       set.code() == ErrorCode::kInvalidArgument;
  if (!refused) return Fail(set);
  MutexLock lock(mutex_);
  if (refused_jobs_.insert(job).second) {
    Log(LogLevel::kWarn, "FilesNotGiven",
        {Kv("job", job), Kv("error", set.ToString()),
         Kv("effect", "the files of the job belong to the agent's user")});
  }
  return FileAccess{};
}

}  // namespace holdfast
