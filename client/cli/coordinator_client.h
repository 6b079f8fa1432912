#pragma once

#include <memory>
#include <string>
#include <vector>

#include "client/cli/options.h"
#include "coordinator/api/convert.h"
#include "coordinator/api/coordinator.grpc.pb.h"
#include "storage/base/ids.h"

namespace holdfast::cli {

/// The operator's calls of the coordinator. Each waits at most the --timeout, ends early when the
/// command is interrupted, and returns one error whether the transport or the coordinator failed.
/// Nothing is sent before the first call. Thread-safe.
class CoordinatorClient {
 public:
  /// InvalidArgument for a malformed endpoint, or one of another machine without TLS files.
  static Result<CoordinatorClient> Open(const GlobalOptions& options);

  /// `job` empty: all jobs; otherwise NotFound when the coordinator does not know it.
  Result<coordinator::GetStatusReply> GetStatus(const std::string& job);
  Result<coordinator::ListVersionsReply> ListVersions(const std::string& job, bool restorable_only);
  /// `version` 0-0: the newest restorable; `tier` 0: the nearest a shard. The reply has one source
  /// for each rank, in order.
  Result<coordinator::PlanRestoreReply> PlanRestore(const std::string& job, VersionId version,
                                                    uint32_t tier);
  /// All copies of all shards of a version (0-0: the newest restorable), parity among them; with
  /// `as_is` also of one that is not whole.
  Result<coordinator::PlanRestoreReply> PlanWhole(const std::string& job, VersionId version,
                                                  bool as_is);
  /// Of one job or all; of one life or any (0).
  Result<coordinator::AdoptReply> Adopt(const std::string& job, LifeId life, bool dry_run);
  Status Pin(const std::string& job, VersionId version, bool pinned);
  /// Pins the newest version on disk, and says which that is.
  Result<VersionId> PinNewest(const std::string& job);
  /// `keep_last` 0: the coordinator's rule again.
  Status Retain(const std::string& job, uint64_t keep_last, uint64_t keep_every);
  Result<coordinator::ForgetJobReply> ForgetJob(const std::string& job);
  Status StartRun(const coordinator::RunSpec& spec);
  Status StopRun(const std::string& job, int64_t deadline_ms);
  /// Of one job (NotFound), or of all.
  Result<coordinator::GetRunsReply> GetRuns(const std::string& job);
  /// Newest first; of one job, or one incident (NotFound), or all.
  Result<coordinator::ListIncidentsReply> ListIncidents(const std::string& job, uint64_t id);
  Status AcknowledgeIncident(uint64_t id, const std::string& why);
  Result<coordinator::WhatIfLostReply> WhatIfLost(const std::string& job,
                                                  const std::vector<std::string>& nodes);
  Status Quarantine(const std::string& node, bool set, const std::string& why);

  /// `down_ms` after its end it starts again. `dry_run`: only asks whether it would.
  Status KillCoordinator(bool dry_run, int64_t start_in_ms, int64_t down_ms);

  /// The named job, or all jobs when `job` is empty.
  Result<std::vector<std::string>> Jobs(const std::string& job);

 private:
  CoordinatorClient(std::unique_ptr<coordinator::Coordinator::Stub> stub, std::string peer,
                    int64_t timeout_ms)
      : stub_(std::move(stub)), peer_(std::move(peer)), timeout_ms_(timeout_ms) {}

  template <typename Request, typename Reply>
  using Method = grpc::Status (coordinator::Coordinator::Stub::*)(grpc::ClientContext*,
                                                                  const Request&, Reply*);
  template <typename Request, typename Reply>
  Result<Reply> Call(Method<Request, Reply> method, const Request& request);

  std::unique_ptr<coordinator::Coordinator::Stub> stub_;
  std::string peer_;
  int64_t timeout_ms_;
};

using coord::FromProto;
using coord::ToProto;

}  // namespace holdfast::cli
