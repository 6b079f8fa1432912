#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/service_manager.h"
#include "storage/io/block_file.h"

namespace holdfast::agent {

// Conditions of the host that an operator should change, as warnings of this node. `holdfast
// status` derives a finding's code from the first words of a warning (coordinator/view/health.cc).

/// Returns a warning when the kernel refuses io_uring for one of the directories; empty otherwise.
std::string IoWarning(const std::vector<std::unique_ptr<Directory>>& directories);

/// Returns a warning when stopping this agent's unit or container would also end the keeper of
/// `run_dir`: a service manager started the agent and the keeper is in its cgroup, or the agent is
/// the first process of a PID namespace that contains the keeper. Empty otherwise.
std::string SharedKeeperWarning(const std::string& run_dir, const ServiceManager& manager);

}  // namespace holdfast::agent
