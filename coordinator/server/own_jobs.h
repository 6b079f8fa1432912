#pragma once

#include <sys/types.h>

#include "coordinator/api/coordinator.pb.h"
#include "coordinator/api/job_owners.h"

// What a caller that is only a user sees of the answers about all jobs: its own jobs. Of other jobs
// at most the name is left.

namespace holdfast::coord {

void LeaveOwnJobs(uid_t uid, coordinator::GetStatusReply* reply);
void LeaveOwnJobs(uid_t uid, const JobOwners& owners, coordinator::GetRunsReply* reply);
void LeaveOwnJobs(uid_t uid, const JobOwners& owners, coordinator::ListIncidentsReply* reply);
void LeaveOwnJobs(uid_t uid, const JobOwners& owners, coordinator::WhatIfLostReply* reply);

}  // namespace holdfast::coord
