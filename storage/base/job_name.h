#pragma once

#include <string_view>

#include "storage/base/status.h"

namespace holdfast {

/// The file beside a volume's marker that says which life of the coordinator's store its agent
/// followed last.
inline constexpr std::string_view kSeenLifeName = "HOLDFAST.life";
/// The file beside a volume's marker that says which agent the volume belongs to.
inline constexpr std::string_view kAgentFileName = "HOLDFAST.agent";

/// ValidateName, and none of the names that data directories use themselves: such a job could never
/// be written to disk. Checked wherever a job begins: `holdfast run`, the client library, the agent
/// and the coordinator.
Status ValidateJobName(std::string_view job);

}  // namespace holdfast
