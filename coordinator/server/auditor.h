#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <string_view>

#include "base/status.h"
#include "coordinator/api/caller.h"
#include "coordinator/server/audit_log.h"

namespace holdfast::coord {

/// Records the calls of operators: who calls, from where, with which request, and the outcome.
/// Thread-safe.
class Auditor {
 public:
  /// Both outlive the auditor.
  Auditor(AuditLog& log, const CallerRegistry& callers) : log_(log), callers_(callers) {}

  /// Records that a call begins; durable when this returns. Returns the number of the record.
  /// After an error the call must not be carried out; the message has the remedy. The values of
  /// environment variables are left out.
  Result<uint64_t> Begin(grpc::CallbackServerContext& context, std::string_view method,
                         const google::protobuf::Message& request);
  /// Records the outcome of the call; durable when this returns. A failure is logged.
  void End(uint64_t begun, std::string_view method, const Status& outcome);

  /// Returns the log, for readers.
  const AuditLog& log() const { return log_; }

 private:
  AuditLog& log_;
  const CallerRegistry& callers_;
};

}  // namespace holdfast::coord
