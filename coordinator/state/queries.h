#pragma once

#include <optional>
#include <string>
#include <vector>

#include "coordinator/state/cluster.h"
#include "coordinator/state/statuses.h"

// Answers to operators: nodes, jobs, versions, and where the shards of a version can be read.

namespace holdfast::coord {

/// Returns all nodes, by name, without those that were removed.
std::vector<NodeStatus> NodeStatuses(const ReadContext& context);

/// Returns all jobs, or only the named one. NotFound: no such job.
Result<std::vector<JobStatus>> JobStatuses(const ReadContext& context, const std::string& only);

/// Returns the versions of a job, newest first. NotFound: no such job.
Result<std::vector<VersionStatus>> VersionStatuses(const ReadContext& context,
                                                   const std::string& name);

/// Returns the nearest source of each shard; see State::PlanRestore.
Result<RestorePlanStatus> PlanRestore(const ReadContext& context, const std::string& name,
                                      std::optional<VersionId> named, std::optional<Tier> tier);

/// Returns every replica of each shard; see State::PlanAllReplicas.
Result<RestorePlanStatus> PlanAllReplicas(const ReadContext& context, const std::string& name,
                                          std::optional<VersionId> named, bool as_is = false);

}  // namespace holdfast::coord
