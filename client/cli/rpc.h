#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "client/cli/options.h"
#include "storage/base/clock.h"
#include "storage/base/mutex.h"

namespace holdfast::cli {

/// A channel by the --endpoint syntax and the TLS options. Nothing connects before the first call.
Result<std::shared_ptr<grpc::Channel>> OpenChannel(const std::string& endpoint,
                                                   const GlobalOptions& options);

/// Whose failure, said for a person: `peer` is "the coordinator at 127.0.0.1:7070", `hint` what to
/// do when nobody answers there. An error that the other side itself sent keeps its code.
Status FromTransport(const grpc::Status& status, const std::string& peer, int64_t timeout_ms,
                     const std::string& hint);

/// The server is there and was too busy to shake hands within gRPC's short connection time-out:
/// worth another try, unlike a refused connection.
bool IsSlowHandshake(const grpc::Status& status);

/// Between two tries.
inline constexpr int64_t kRetryPauseMs = 150;

/// Cancels a streaming call that has been silent for too long.
class SilenceGuard {
 public:
  SilenceGuard(grpc::ClientContext& call, int64_t timeout_ms);
  ~SilenceGuard();
  SilenceGuard(const SilenceGuard&) = delete;
  SilenceGuard& operator=(const SilenceGuard&) = delete;

  /// Something arrived.
  void Touch();
  /// Time does not count while the receiver is busy with what arrived.
  void Pause();
  bool expired();

 private:
  void Watch();

  grpc::ClientContext& call_;
  const std::chrono::nanoseconds timeout_;
  Mutex mutex_;
  CondVar changed_;
  Clock::TimePoint until_ HOLDFAST_GUARDED_BY(mutex_);
  bool paused_ HOLDFAST_GUARDED_BY(mutex_) = false;
  bool expired_ HOLDFAST_GUARDED_BY(mutex_) = false;
  bool stopped_ HOLDFAST_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace holdfast::cli
