#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "testing/cluster/cluster.h"

namespace holdfast::local {

/// The state of one job as the CLI shows it.
struct JobSummary {
  std::optional<VersionId> memory_committed;
  std::optional<VersionId> peer_committed;
  std::optional<VersionId> disk_committed;
  std::optional<VersionId> restorable;
  std::vector<std::string> codes;  // of `holdfast status`: "DISK_FULL", …
  std::string text;                // the findings' messages
};

/// Runs `holdfast status JOB -o json` and parses its output.
Result<JobSummary> Observe(const Cluster& cluster, const std::string& job);

/// Waits until the job has a committed version at `tier` that is newer than `than`. Returns it.
Result<VersionId> AwaitCommit(const Cluster& cluster, const std::string& job, Tier tier,
                              std::optional<VersionId> than, std::chrono::milliseconds timeout);

}  // namespace holdfast::local
