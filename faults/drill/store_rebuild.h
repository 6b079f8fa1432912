#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "cli/cluster/coordinator_client.h"
#include "cli/core/command.h"
#include "faults/drill/drill.h"
#include "faults/drill/plan.h"

namespace holdfast::faults {

/// The drill lose-store, after its fault: waits for a coordinator with an empty store, adopts what
/// the nodes have, compares the bytes of each adopted version with those before the fault, and
/// starts the run again, whose record was lost, too.
class StoreRebuild {
 public:
  /// The references must outlive the object.
  StoreRebuild(cli::Context& context, cli::CoordinatorClient& client, std::string job)
      : context_(context), client_(client), job_(std::move(job)) {}

  /// Records the owner, the run and the digests of the versions. Before the fault.
  Status Record();
  /// Brings the job back, also after an interruption, since no other program does that. Then
  /// waits for a new version until `give_up_ms` after the fault. `since` returns the time since the
  /// fault.
  void Follow(const DrillPlan& plan, const std::function<int64_t()>& since, int64_t give_up_ms,
              DrillReport* report);
  /// Returns the versions that were pinned, or that the adoption may have pinned.
  const std::set<VersionId>& pinned() const { return pinned_; }

 private:
  using Digests = std::vector<uint64_t>;  // by rank

  /// Records the run and the digests of all versions from a backup of the store: no other answer
  /// has the environment of a run.
  Status RecordVersions();
  /// Waits for a coordinator of another life with all nodes of the plan. Records the digests of new
  /// versions until the fault begins.
  bool AwaitNodes(const DrillPlan& plan);
  /// Adopts until nothing more was adopted for a while.
  void Adopt();
  /// Compares the adopted versions with what was recorded.
  void Compare();
  Status StartRun();
  void AwaitCommit();
  Result<Digests> DigestsOf(VersionId version);
  /// Compares one version. Returns what differs, or "".
  std::string Difference(VersionId version, const Digests& before);
  bool Wait();
  bool InTime() const { return since_() < give_up_ms_; }

  cli::Context& context_;
  cli::CoordinatorClient& client_;
  const std::string job_;
  std::function<int64_t()> since_;
  int64_t give_up_ms_ = 0;
  DrillReport* report_ = nullptr;
  // before the fault
  LifeId life_;
  uint32_t owner_ = 0;
  uint64_t newest_step_ = 0;
  coordinator::RunSpec run_;
  std::map<VersionId, Digests> before_;
  // after it
  std::set<VersionId> adopted_;
  std::set<VersionId> pinned_;
  std::map<VersionId, std::string> refused_;  // why
};

}  // namespace holdfast::faults
