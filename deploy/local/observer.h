#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "deploy/local/cluster.h"
#include "storage/base/ids.h"

namespace holdfast::local {

/// What an operator sees of one job through the CLI.
struct JobView {
  std::optional<VersionId> memory_committed;
  std::optional<VersionId> peer_committed;
  std::optional<VersionId> disk_committed;
  std::optional<VersionId> restorable;
  std::vector<std::string> codes;  // of `holdfast status`: "DISK_FULL", …
  std::string text;                // the findings' sentences
};

/// `holdfast status JOB -o json` and what it says.
Result<JobView> Observe(const Cluster& cluster, const std::string& job);

/// Waits until the job has a version at a tier that is newer than `than`; which one.
Result<VersionId> AwaitCommit(const Cluster& cluster, const std::string& job, Tier tier,
                              std::optional<VersionId> than, std::chrono::milliseconds timeout);

}  // namespace holdfast::local
