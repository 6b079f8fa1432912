#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "coordinator/contract/directives.h"
#include "coordinator/contract/reports.h"
#include "coordinator/contract/requests.h"
#include "storage/format/commit.h"
#include "storage/volume/seen_life.h"

// The pipeline's interface to the coordinator. agent/server implements it over gRPC; tests use a
// small coordinator in the same process.

namespace holdfast::agent {

/// Sends the pipeline's reports and requests. Thread-safe; no call blocks. Reports are kept until
/// the coordinator has acknowledged them and are repeated after a reconnect. Each `done` is called
/// exactly once, from any thread. If the link stops first, `done` gets Cancelled.
class CoordinatorLink {
 public:
  virtual ~CoordinatorLink() = default;

  virtual void Report(StoredReplica report) = 0;
  virtual void Report(FailedReplica failed) = 0;
  virtual void Report(RemovedReplica removed) = 0;
  virtual void Report(Prepared prepared) = 0;
  /// Replaces the complete list of warnings that this node shows to operators.
  virtual void SetWarnings(std::vector<std::string> warnings) = 0;

  // NOLINTBEGIN(performance-unnecessary-value-param): implementations keep the arguments.
  /// Replaces the complete list of trainers on this node.
  virtual void SetRanks(std::vector<LocalRank> /*ranks*/) {}
  /// Replaces the commits that this agent lists when it attaches.
  virtual void SetKnownCommits(std::vector<VersionCommit> /*commits*/) {}
  virtual void Report(TierWanted /*wanted*/) {}
  // NOLINTEND(performance-unnecessary-value-param)
  /// Reports at once, and with each later report, that this agent ends soon.
  virtual void AnnounceDeparture() {}
  /// Whether the coordinator receives reports now.
  virtual bool IsAttached() { return false; }

  /// `done` gets Unavailable while the coordinator cannot be reached.
  virtual void Join(const JoinRequest& request, std::function<void(Result<Incarnation>)> done) = 0;
  virtual void DecideRestore(const RestoreRequest& request,
                             std::function<void(Result<RestoreDecision>)> done) = 0;
  virtual void FindPlaces(const std::string& job, VersionId version,
                          std::function<void(Result<VersionPlaces>)> done) = 0;
};

/// Receives the directives that arrive on the link. Calls return at once.
class DirectiveHandler {
 public:
  virtual ~DirectiveHandler() = default;
  virtual void OnJobState(JobState state) = 0;
  virtual void OnPrepareShard(PrepareShard prepare) = 0;
  virtual void OnRemoveVersion(RemoveVersion remove) = 0;
  /// Called with the life of the coordinator's store, before the first directive of that life.
  /// After a change of the life, the numbers of incarnations and versions have another meaning, and
  /// trainers must join again.
  virtual void OnLife(const SeenLife& /*seen*/) {}
};

}  // namespace holdfast::agent
