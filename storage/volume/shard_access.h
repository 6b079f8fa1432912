#pragma once

#include <functional>
#include <set>
#include <string>

#include "base/mutex.h"
#include "storage/io/block_file.h"

namespace holdfast {

/// Returns the access to the files of a job.
using JobAccess = std::function<FileAccess(const std::string& job)>;

/// Gives the files of shards to the users of their jobs. Thread-safe.
class ShardAccess {
 public:
  /// Without `of_job`, all files stay with the user of this process.
  explicit ShardAccess(JobAccess of_job) : of_job_(std::move(of_job)) {}

  FileAccess Of(const std::string& job) const { return of_job_ ? of_job_(job) : FileAccess{}; }
  /// Sets the access of a new file, and returns the access that the file has. Where the kernel or
  /// the file system refuses, the file stays with the user of this process, which is logged once
  /// for each job. Call it before the file is synced and renamed.
  Result<FileAccess> Give(Directory& dir, const std::string& path, const std::string& job,
                          const FileAccess& access);

 private:
  const JobAccess of_job_;
  Mutex mutex_;
  std::set<std::string> refused_jobs_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast
