#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"

namespace holdfast::coord {

/// The user root, whose processes may use every job.
inline constexpr uint32_t kRootUser = 0;

/// The rule of job owners for trainers and runs: a job belongs to the user that opened it first.
/// Returns PermissionDenied if processes of `uid` may not be part of the job. Without an owner,
/// which is so for adopted jobs, only root may open it.
Status CheckOwner(const std::string& job, std::optional<uint32_t> owner, uint32_t uid);

}  // namespace holdfast::coord
