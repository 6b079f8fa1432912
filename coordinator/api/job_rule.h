#pragma once

#include <google/protobuf/message.h>

#include <string>

#include "base/status.h"
#include "coordinator/api/access.h"
#include "coordinator/api/caller.h"
#include "coordinator/api/job_owners.h"

namespace holdfast::coord {

/// Returns the job that `request` names in the field of `rule`; empty: none.
std::string JobNamedIn(const AccessRule& rule, const google::protobuf::Message& request);

/// The rule of job owners, for every method of every server: whether a caller with the role user,
/// and with no role of `rule`, may call the method for `job`. PermissionDenied: the message names
/// the rule and the remedy. `job` empty: the request names none.
Status CheckUserRule(const AccessRule& rule, const Caller& caller, const std::string& job,
                     const JobOwner& owner);

}  // namespace holdfast::coord
