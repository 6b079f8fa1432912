#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cli/cluster/coordinator_client.h"
#include "cli/core/command.h"
#include "faults/drill/drill.h"
#include "faults/drill/injection.h"
#include "faults/drill/plan.h"
#include "faults/drill/store_rebuild.h"

namespace holdfast::faults {

/// Injects failures into a running job and measures the recovery. Ends its faults before it
/// returns, also when the command is interrupted.
class DrillRunner {
 public:
  /// The references must outlive the runner.
  DrillRunner(cli::Context& context, cli::CoordinatorClient& client,
              const InjectorAddresses& addresses, std::string job)
      : context_(context),
        client_(client),
        job_(std::move(job)),
        planner_(client, job_),
        injection_(context.options, addresses, context.clock) {}

  /// Makes the remaining choices. FailedPrecondition: the job could not survive the drill, and the
  /// drill is not forced.
  Result<DrillPlan> Plan(const DrillRequest& request, uint64_t seed) {
    return planner_.Plan(request, seed);
  }
  /// Returns the injectors' description of what the drill would do.
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
    std::optional<VersionId> committed;
    std::optional<VersionId> disk;
    std::optional<VersionId> kept;  // pinned, with its digests known
    uint64_t newest_step = 0;
    uint64_t incarnation = 0;
    std::map<VersionId, Digests> digests;  // of the versions that may be restored
  };

  /// Tries again with another version as long as the chosen one was removed meanwhile.
  template <typename Try>
  auto OnSomeVersion(DrillPlan* plan, Try attempt) -> decltype(attempt());
  Status Begin();
  void KeepOneVersion();
  Status End(const DrillPlan& plan, int64_t timeout_ms);
  Snapshot TakeSnapshot();
  /// Absent: the newest version that can be restored.
  void RecordDigests(std::optional<VersionId> version);
  Result<Digests> DigestsOf(std::optional<VersionId> version);

  void Follow(const DrillPlan& plan, int64_t give_up_ms, DrillReport* report);
  /// Returns true when the drill is over.
  bool Apply(const DrillPlan& plan, const Snapshot& snapshot, DrillReport* report);
  void ApplyIncidents(const DrillPlan& plan, const Snapshot& snapshot, DrillReport* report);
  bool NamesSlowTarget(const DrillPlan& plan, const coordinator::Incident& incident) const;
  bool FaultShows(const DrillPlan& plan, const Snapshot& snapshot) const;
  void FollowCorruption(const DrillPlan& plan, int64_t give_up_ms, DrillReport* report);
  void CompareBytes(VersionId version, DrillReport* report);
  int64_t SinceInjection() const;

  cli::Context& context_;
  cli::CoordinatorClient& client_;
  const std::string job_;
  DrillPlanner planner_;
  Injection injection_;
  std::string drill_;  // its name at the injectors
  Baseline before_;
  std::set<VersionId> pinned_;
  Clock::TimePoint injected_;
  int64_t injected_wall_ = 0;
};

}  // namespace holdfast::faults
