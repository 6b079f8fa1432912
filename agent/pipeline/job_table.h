#pragma once

#include <map>
#include <string>
#include <utility>

#include "agent/pipeline/coordinator_link.h"

namespace holdfast::agent {

/// The coordinator's latest state of each job with memory or trainers on this node. Only the node's
/// loop thread uses it.
class JobTable {
 public:
  /// Returns nullptr for an unknown job. The pointer is valid until the job's next change.
  const JobState* Find(const std::string& job) const {
    auto found = jobs_.find(job);
    return found == jobs_.end() ? nullptr : &found->second;
  }
  const JobState& Set(JobState state) {
    std::string job = state.job;
    return jobs_.insert_or_assign(std::move(job), std::move(state)).first->second;
  }
  void Erase(const std::string& job) { jobs_.erase(job); }
  /// Removes and returns all jobs.
  std::map<std::string, JobState> TakeAll() { return std::exchange(jobs_, {}); }
  size_t size() const { return jobs_.size(); }

 private:
  std::map<std::string, JobState> jobs_;
};

}  // namespace holdfast::agent
