#pragma once

#include <optional>

#include "agent/config/config.h"
#include "base/clock.h"
#include "base/clock_skew.h"
#include "cli/cluster/coordinator_client.h"
#include "cli/doctor/finding.h"
#include "cli/doctor/host_checks.h"

// Checks of what a node reaches over the network.

namespace holdfast::cli {

/// The coordinator's answer to this node.
struct ClusterView {
  coordinator::GetStatusReply status;
  ClockSkew skew;  // of this machine against the coordinator; its clock may be unknown
};

/// Asks the coordinator, and adds findings about it and its name for this node. Returns nothing if
/// it does not answer.
std::optional<ClusterView> CheckCoordinator(const agent::AgentConfig& config,
                                            const LimitedProcess& process,
                                            CoordinatorClient& client, const Clock& clock,
                                            Findings* findings);
/// The clock of this machine against the coordinator's.
Finding CheckClock(const ClusterView& view);
/// Connects to all other nodes that are up, as this node's agent would, and reads bytes from some
/// of them for half a second each. One finding for each node that does not answer, ten at most.
Findings CheckPeers(const agent::AgentConfig& config, const coordinator::GetStatusReply& status,
                    const Clock& clock);

}  // namespace holdfast::cli
