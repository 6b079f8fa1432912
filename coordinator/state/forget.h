#pragma once

#include <string>
#include <vector>

#include "coordinator/state/cluster.h"

// Forgetting a job: its versions, records and name are removed at once. forgotten.h follows its
// replicas until they are removed. A job can be forgotten when it has no run and no trainers.

namespace holdfast::coord {

/// Forgets the job that an operator names, or refuses.
void OnJobForgotten(Context& context, const JobForgotten& event);

/// Forgets `job` and erases its records. Adds to `away`, unless it is null, the names of the nodes
/// that may have replicas of the job and are not attached.
void ForgetJob(Context& context, Job& job, std::vector<std::string>* away);

}  // namespace holdfast::coord
