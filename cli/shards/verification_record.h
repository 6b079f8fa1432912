#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cli/cluster/coordinator_client.h"
#include "cli/shards/shard_check.h"

// The coordinator keeps the outcome of the last verification of each version, for `versions` and
// the page.

namespace holdfast::cli {

/// Numbers of replicas by job and version.
using ReplicaCounts = std::map<std::pair<std::string, VersionId>, uint32_t>;

ReplicaCounts CountReplicas(const std::vector<ShardCheck>& checks);

/// Records the results of `report` with the coordinator, one outcome for each version of which a
/// shard was checked. `left_out`: replicas that are not in the sample. The report gets a note when
/// the coordinator records nothing, unless the coordinator is older and cannot.
void RecordVerifications(CoordinatorClient& client, const ReplicaCounts& left_out, bool deep,
                         CheckReport& report);

}  // namespace holdfast::cli
