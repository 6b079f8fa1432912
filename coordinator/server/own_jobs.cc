#include "coordinator/server/own_jobs.h"

#include <algorithm>
#include <set>
#include <string>

namespace holdfast::coord {
namespace {
namespace pb = coordinator;

template <typename Field, typename IsOther>
void Remove(Field* field, const IsOther& is_other) {
  field->erase(std::remove_if(field->begin(), field->end(), is_other), field->end());
}

/// Returns a predicate for messages with a job of another user.
auto OfOthers(uid_t uid, const JobOwners& owners) {
  return [uid, &owners](const auto& message) { return owners.Find(message.job()).uid != uid; };
}
}  // namespace

void LeaveOwnJobs(uid_t uid, pb::GetStatusReply* reply) {
  std::set<std::string> own;
  for (const pb::JobStatus& job : reply->jobs()) {
    if (job.uid() == uid) {
      own.insert(job.job());
    } else {
      reply->add_other_jobs(job.job());
    }
  }
  const auto is_other = [&own](const auto& message) { return own.count(message.job()) == 0; };
  Remove(reply->mutable_jobs(), is_other);
  for (pb::NodeStatus& node : *reply->mutable_nodes()) {
    Remove(node.mutable_memberships(), is_other);
    Remove(node.mutable_other_lives(), is_other);
  }
}

void LeaveOwnJobs(uid_t uid, const JobOwners& owners, pb::GetRunsReply* reply) {
  Remove(reply->mutable_runs(), [uid, &owners](const pb::RunStatus& run) {
    return owners.Find(run.spec().job()).uid != uid;
  });
}

void LeaveOwnJobs(uid_t uid, const JobOwners& owners, pb::ListIncidentsReply* reply) {
  Remove(reply->mutable_incidents(), OfOthers(uid, owners));
}

void LeaveOwnJobs(uid_t uid, const JobOwners& owners, pb::WhatIfLostReply* reply) {
  Remove(reply->mutable_jobs(), OfOthers(uid, owners));
}

}  // namespace holdfast::coord
