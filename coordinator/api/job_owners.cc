#include "coordinator/api/job_owners.h"

#include <utility>

namespace holdfast::coord {

JobOwner JobOwners::Find(const std::string& job) const {
  MutexLock lock(mutex_);
  const auto found = owners_.find(job);
  return found == owners_.end() ? JobOwner{} : JobOwner{true, found->second};
}

void JobOwners::Set(const std::string& job, std::optional<uid_t> uid) {
  MutexLock lock(mutex_);
  owners_[job] = uid;
}

void JobOwners::Erase(const std::string& job) {
  MutexLock lock(mutex_);
  owners_.erase(job);
}

void JobOwners::Reset(std::map<std::string, std::optional<uid_t>> owners) {
  MutexLock lock(mutex_);
  owners_ = std::move(owners);
}

}  // namespace holdfast::coord
