#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>

#include "base/mutex.h"

namespace holdfast::coord {

/// The user a job belongs to, as one server knows it.
struct JobOwner {
  bool exists = false;       // false: the server has no job of this name
  std::optional<uid_t> uid;  // absent: the job's record has no owner
};

/// The owners of jobs by name. Thread-safe.
class JobOwners {
 public:
  JobOwner Find(const std::string& job) const;
  /// Sets the owner of a job; no `uid`: the job exists and its owner is not known.
  void Set(const std::string& job, std::optional<uid_t> uid);
  void Erase(const std::string& job);
  /// Replaces all owners.
  void Reset(std::map<std::string, std::optional<uid_t>> owners);

 private:
  mutable Mutex mutex_;
  std::map<std::string, std::optional<uid_t>> owners_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast::coord
