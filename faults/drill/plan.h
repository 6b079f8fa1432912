#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/random.h"
#include "cli/cluster/coordinator_client.h"
#include "faults/drill/drill.h"

namespace holdfast::faults {

/// One drill with all choices made: its target and its fault.
struct DrillPlan {
  DrillKind kind = DrillKind::kKillRank;
  uint64_t seed = 0;
  std::string cluster;
  std::string job;
  std::optional<uint32_t> rank;
  std::vector<std::string> nodes;    // whose injectors inject the fault
  bool coordinator = false;          // the coordinator is a target, too
  std::optional<VersionId> version;  // kCorruptShard
  int64_t duration_ms = 0;
  std::vector<std::string> others;  // kPartition, kSlowLink: addresses of the other nodes
  std::string peer;                 // not empty: only the link to this node
  uint64_t bytes_per_s = 0;         // kSlowLink
  bool force = false;
  std::map<std::string, std::string> agents;  // node → address of its agent's data service

  std::string Target() const;
};

/// A drill as given on the command line. The seed makes the remaining choices.
struct DrillRequest {
  DrillKind kind = DrillKind::kKillRank;
  DrillTarget target;
  std::optional<int64_t> duration_ms;
  uint64_t bytes_per_s = 1'000'000;  // kSlowLink
  bool force = false;
};

/// Chooses what a drill does to a job, from what the coordinator knows. Changes nothing.
class DrillPlanner {
 public:
  DrillPlanner(cli::CoordinatorClient& client, std::string job)
      : client_(client), job_(std::move(job)) {}

  /// Makes the remaining choices. FailedPrecondition: the job could not survive the drill, and the
  /// drill is not forced.
  Result<DrillPlan> Plan(const DrillRequest& request, uint64_t seed);
  /// Checks that a version would be left, and chooses the version to corrupt: the newest on disk.
  /// Training and retention continue, so the chosen version may be removed: choose again then.
  Status ChooseVersion(DrillPlan* plan);

 private:
  Status CheckJob(const DrillTraits& traits, bool force);
  Status CheckOtherJobs(bool force);
  Status ChooseTarget(const DrillTarget& target, Random& random, DrillPlan* plan);
  Status CheckSurvival(DrillKind kind, bool force, DrillPlan* plan);
  Status ChooseLinks(DrillPlan* plan);

  cli::CoordinatorClient& client_;
  const std::string job_;
  std::string cluster_;
  std::vector<std::string> run_nodes_;  // by node rank
  uint32_t ranks_per_node_ = 1;
  std::map<std::string, std::string> agents_;  // that are attached
};

}  // namespace holdfast::faults
