#pragma once

#include <optional>
#include <set>
#include <string>

#include "base/mutex.h"
#include "coordinator/api/job_owners.h"
#include "storage/io/block_file.h"

namespace holdfast::agent {

/// Returns the group of this machine with the name `files.group`; none for an empty name.
/// InvalidArgument: there is no such group, or this process may not give files to the group.
Result<std::optional<gid_t>> FindFileGroup(const std::string& name);

/// Decides which user owns the files of a job (the user that the job belongs to), and the group of
/// the configuration. Thread-safe.
class FileOwners {
 public:
  /// `owners` outlives the object.
  FileOwners(const coord::JobOwners& owners, std::optional<gid_t> group);

  /// The files of a job whose owner is unknown stay with the agent's user. So do all files where
  /// the agent may not give them away, which is logged once for each job.
  FileAccess Of(const std::string& job);

 private:
  const coord::JobOwners& owners_;
  const std::optional<gid_t> group_;
  const bool may_give_;
  Mutex mutex_;
  std::set<std::string> kept_jobs_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast::agent
