#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/service_type.h>

#include <deque>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "coordinator/api/caller.h"
#include "coordinator/api/job_owners.h"

namespace holdfast::coord {

/// A gRPC service whose every method is checked against AccessRules() before its handler runs. A
/// caller that is only a user may use only its own jobs. A refused call ends with
/// PERMISSION_DENIED, which names the method, the rule, the caller and the remedy. Thread-safe.
class GuardedService : public grpc::Service {
 public:
  /// Wraps `service`, which outlives the result and has the full name `name`, e.g.
  /// coordinator::Coordinator::service_full_name(). `clock` and `owners` outlive the result.
  /// `owners` has the owners of jobs; null: all jobs are unknown. Internal: `name` is no
  /// compiled-in service, a method has no rule, or clients stream requests to a method.
  static Result<std::unique_ptr<GuardedService>> Make(grpc::Service& service,
                                                      const std::string& name, std::string cluster,
                                                      AccessOptions options, const Clock& clock,
                                                      const JobOwners* owners = nullptr);

  CallerRegistry& callers() { return callers_; }
  const Clock& clock() const { return clock_; }

 private:
  GuardedService(std::string cluster, AccessOptions options, const Clock& clock)
      : callers_(std::move(cluster), std::move(options), clock), clock_(clock) {}

  std::deque<std::string> paths_;  // of the methods; gRPC keeps pointers to them
  CallerRegistry callers_;
  const JobOwners none_;
  const Clock& clock_;
};

}  // namespace holdfast::coord
