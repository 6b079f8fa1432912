#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "cli/cluster/leader_calls.h"
#include "cli/core/options.h"
#include "coordinator/api/coordinator.grpc.pb.h"

namespace holdfast::cli {

/// Receives the parts of a backup in order.
class BackupSink {
 public:
  virtual ~BackupSink() = default;
  /// May take the records out of the part. After an error no part follows.
  virtual Status Take(coordinator::BackupPart& part) = 0;
};

/// The operator's calls to the coordinator that leads. Each waits at most --timeout and ends early
/// when the command is interrupted. Errors of the transport and of the coordinator have the same
/// form. Nothing is sent before the first call. Thread-safe.
class CoordinatorClient {
 public:
  /// InvalidArgument: a malformed endpoint, or one on another machine without TLS files. `clock`
  /// outlives the client.
  static Result<CoordinatorClient> Open(const GlobalOptions& options, const Clock& clock);

  /// `job` empty: all jobs. NotFound: the coordinator has no such job.
  Result<coordinator::GetStatusReply> GetStatus(const std::string& job);
  Result<coordinator::ListVersionsReply> ListVersions(const std::string& job, bool restorable_only);
  /// `version` empty: the newest restorable one. `tier` 0: the nearest tier of each shard. The
  /// reply has one source for each rank, in order.
  Result<coordinator::PlanRestoreReply> PlanRestore(const std::string& job,
                                                    std::optional<VersionId> version,
                                                    uint32_t tier);
  /// Returns all replicas of all shards and parity shards of a version (empty: the newest
  /// restorable one). With `as_is`, also of a version that lacks shards.
  Result<coordinator::PlanRestoreReply> PlanAllReplicas(const std::string& job,
                                                        std::optional<VersionId> version,
                                                        bool as_is);
  /// `job` empty: all jobs. `life` 0: any life.
  /// `owner`: the user that the job gets if it has none.
  Result<coordinator::AdoptReply> Adopt(const std::string& job, LifeId life, bool dry_run,
                                        std::optional<uint32_t> owner = {});
  Status Pin(const std::string& job, VersionId version, bool pinned);
  /// Pins the newest version on disk and returns it.
  Result<VersionId> PinNewest(const std::string& job);
  /// Records the outcome of a verification of one version. NotFound: the version was removed.
  /// Unsupported: an older coordinator.
  Status RecordVerification(const std::string& job, VersionId version,
                            const coordinator::Verification& verification);
  /// `keep_last` 0: returns to the coordinator's rule.
  Status Retain(const std::string& job, uint64_t keep_last, uint64_t keep_every);
  Result<coordinator::ForgetJobReply> ForgetJob(const std::string& job);
  Status StartRun(const coordinator::RunSpec& spec);
  Status StopRun(const std::string& job, int64_t deadline_ms);
  /// `job` empty: all jobs. NotFound: the job has no run.
  Result<coordinator::GetRunsReply> GetRuns(const std::string& job);
  /// Returns the records of the calls that changed the cluster since a wall time, oldest first;
  /// each is a JSON object.
  Result<std::vector<std::string>> GetAudit(int64_t since_wall_nanos);
  /// Passes all records of the store, as of one moment, to `sink`.
  Status Backup(BackupSink& sink);
  /// Newest first. All incidents, those of `job`, or the one with this `id` (NotFound).
  Result<coordinator::ListIncidentsReply> ListIncidents(const std::string& job, uint64_t id);
  Status AcknowledgeIncident(uint64_t id, const std::string& why);
  Result<coordinator::WhatIfLostReply> WhatIfLost(const std::string& job,
                                                  const std::vector<std::string>& nodes);
  Status Drain(const std::string& node, bool set, const std::string& why, bool move_runs);
  /// Removes a node that is down.
  Status RemoveNode(const std::string& node, const std::string& why);
  /// Returns whether the node can be stopped without the loss of a version.
  Result<coordinator::GetDrainReply> GetDrain(const std::string& node);
  /// `untested`: releases the node without its self-test.
  Status Quarantine(const std::string& node, bool set, const std::string& why, bool untested);

  /// Returns the named job, or all jobs when `job` is empty.
  Result<std::vector<std::string>> Jobs(const std::string& job);

 private:
  explicit CoordinatorClient(LeaderCalls calls) : calls_(std::move(calls)) {}

  LeaderCalls calls_;
};

using coord::AnyNumber;
using coord::AnyVersion;
using coord::FromProto;
using coord::ToProto;

}  // namespace holdfast::cli
