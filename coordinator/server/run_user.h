#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/status.h"
#include "coordinator/api/caller.h"
#include "coordinator/api/job_owners.h"

namespace holdfast::coord {

/// Returns the user that the workers of a run get: the user who asks, or `run_as` if an operator or
/// a runner names one of `allowed`. A certificate asks for the user of its name, who is not root.
/// PermissionDenied, NotFound: the message names the remedy.
Result<uid_t> RunUserOf(const Caller& caller, const std::string& run_as,
                        const std::vector<std::string>& allowed);

/// Returns OK if the caller may stop the run of a job. A certificate of a runner may do so for jobs
/// of the user of its name and of the users in `allowed`. PermissionDenied names both.
Status CheckMayStop(const Caller& caller, const std::string& job, const JobOwner& owner,
                    const std::vector<std::string>& allowed);

}  // namespace holdfast::coord
