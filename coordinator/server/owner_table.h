#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>

#include "coordinator/api/job_owners.h"
#include "coordinator/state/events.h"

namespace holdfast::coord {

/// The owners of all jobs and runs, as the applier's events change them. A job that trainers have
/// not joined yet belongs to the user of its run. Thread-compatible.
class OwnerTable {
 public:
  /// Replaces all owners by those of the records.
  void Load(const Records& records);
  /// Follows the Put and Erase effects.
  void Update(std::span<const Effect> effects);
  JobOwner Find(const std::string& job) const;
  /// Returns the number of jobs of a user.
  size_t CountOf(uint32_t uid) const;
  /// Returns the owner of each job.
  std::map<std::string, std::optional<uid_t>> All() const;
  /// Brings `owners` up to date, which had all of an earlier Publish() or of All().
  void Publish(JobOwners& owners);

 private:
  struct Owners {
    std::optional<std::optional<uid_t>> job;  // of the record of the job, if there is one
    std::optional<std::optional<uid_t>> run;  // of the record of the run
    std::optional<uid_t> uid() const { return job ? *job : *run; }
  };
  void PutOwner(const JobRecord& record);
  void Drop(const std::string& job);

  std::map<std::string, Owners> owners_;  // each has at least one of both
  std::set<std::string> changed_;         // since the last Publish()
};

}  // namespace holdfast::coord
