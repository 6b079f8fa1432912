#pragma once

#include <string_view>

#include "base/status.h"

namespace holdfast {

/// The file next to a volume's marker that records the life of the coordinator's store that the
/// volume's agent followed last.
inline constexpr std::string_view kSeenLifeName = "HOLDFAST.life";
/// The file next to a volume's marker that records which agent the volume belongs to.
inline constexpr std::string_view kAgentFileName = "HOLDFAST.agent";

/// The file next to a volume's marker that records which versions of the node's shards the
/// coordinator has committed.
inline constexpr std::string_view kCommitsName = "HOLDFAST.commits";

/// Checks ValidateName and refuses the names that data directories reserve: a job with such a name
/// could never be written to disk. `holdfast run`, the client library, the agent and the
/// coordinator call this when a job begins.
Status ValidateJobName(std::string_view job);

}  // namespace holdfast
