#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/api/agent.pb.h"
#include "base/random.h"
#include "cli/cluster/coordinator_client.h"
#include "cli/core/command.h"
#include "cli/drill/drill.h"

namespace holdfast::cli {

/// One drill with all choices made: its target and its fault.
struct DrillPlan {
  DrillKind kind = DrillKind::kKillRank;
  uint64_t seed = 0;
  std::optional<uint32_t> rank;
  std::vector<std::string> nodes;  // whose agents inject the fault
  bool coordinator = false;        // the coordinator is a target, too
  VersionId version;               // kCorruptShard
  int64_t duration_ms = 0;
  std::vector<std::string> others;  // kPartition, kSlowLink: addresses of the other nodes
  std::string peer;                 // not empty: only the link to this node
  uint64_t bytes_per_s = 0;         // kSlowLink
  bool force = false;

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

/// Injects failures into a running job and measures the recovery. Ends its faults before it
/// returns, also when the command is interrupted.
class DrillRunner {
 public:
  DrillRunner(Context& context, CoordinatorClient& client, std::string job)
      : context_(context), client_(client), job_(std::move(job)) {}

  /// Makes the remaining choices. FailedPrecondition: the job could not survive the drill, and the
  /// drill is not forced.
  Result<DrillPlan> Plan(const DrillRequest& request, uint64_t seed);
  /// Returns the agents' description of what the drill would do.
  Result<std::string> Rehearse(DrillPlan* plan);
  /// Runs the drill and waits at most `give_up_ms` for the recovery. A job that does not recover is
  /// not an error; the report shows it. Cancelled: interrupted, and the faults have been ended.
  Result<DrillReport> Run(DrillPlan plan, int64_t give_up_ms);

 private:
  using Digests = std::map<uint32_t, uint64_t>;  // by rank
  /// The state that an operator can observe at one time.
  struct Snapshot {
    bool reached = false;
    coordinator::GetStatusReply status;
    std::vector<coordinator::Incident> incidents;  // new ones, oldest first
    const coordinator::JobStatus* job() const {
      return status.jobs_size() == 1 ? &status.jobs(0) : nullptr;
    }
  };
  struct Baseline {
    uint64_t incident = 0;  // newest
    VersionId committed;
    VersionId disk;
    VersionId kept;  // pinned, with its digests known
    uint64_t newest_step = 0;
    uint64_t incarnation = 0;
    std::map<VersionId, Digests> digests;  // of the versions that may be restored
  };

  Status CheckJob(const DrillTraits& traits, bool force);
  Status ChooseTarget(const DrillTarget& target, Random& random, DrillPlan* plan);
  Status CheckSurvival(DrillKind kind, bool force, DrillPlan* plan);
  Status ChooseVersion(DrillPlan* plan);
  Status ChooseLinks(DrillPlan* plan);
  /// Tries again with another version as long as the chosen one was removed meanwhile.
  template <typename Try>
  auto OnSomeVersion(DrillPlan* plan, Try attempt) -> decltype(attempt());
  Status Begin();
  Result<std::string> Inject(const DrillPlan& plan, bool dry_run);
  agent::InjectFaultRequest RequestOf(const DrillPlan& plan, bool dry_run) const;
  Status End(const DrillPlan& plan, int64_t timeout_ms);
  Snapshot TakeSnapshot();
  void RecordDigests(VersionId version);
  Result<Digests> DigestsOf(VersionId version);

  void Follow(const DrillPlan& plan, int64_t give_up_ms, DrillReport* report);
  /// Returns true when the drill is over.
  bool Apply(const DrillPlan& plan, const Snapshot& snapshot, DrillReport* report);
  void ApplyIncidents(const DrillPlan& plan, const Snapshot& snapshot, DrillReport* report);
  bool NamesSlowTarget(const DrillPlan& plan, const coordinator::Incident& incident) const;
  bool FaultShows(const DrillPlan& plan, const Snapshot& snapshot) const;
  void FollowCorruption(const DrillPlan& plan, int64_t give_up_ms, DrillReport* report);
  void CompareBytes(VersionId version, DrillReport* report);
  int64_t SinceInjection() const;

  Context& context_;
  CoordinatorClient& client_;
  const std::string job_;
  std::vector<std::string> run_nodes_;  // by node rank
  uint32_t ranks_per_node_ = 1;
  std::map<std::string, std::string> addresses_;
  std::string drill_;  // its name at the agents
  Baseline before_;
  std::set<VersionId> pinned_;
  Clock::TimePoint injected_;
  int64_t injected_wall_ = 0;
};

}  // namespace holdfast::cli
