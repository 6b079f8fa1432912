#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/mutex.h"
#include "cli/core/interrupt.h"
#include "cli/core/options.h"
#include "coordinator/api/channel.h"

namespace holdfast::cli {

/// Returns the TLS options.
coord::TlsFiles TlsOf(const GlobalOptions& options);

/// Returns OK if every server of `endpoints`, in the --endpoint syntax, may be called with these
/// options. InvalidArgument: an address without TLS that is neither a unix socket nor, with
/// --insecure-loopback, a loopback address; the message names the remedy.
Status CheckMayCall(const std::string& endpoints, const GlobalOptions& options);

/// Creates a channel from an endpoint in the --endpoint syntax and the TLS options. Does not
/// connect before the first call.
Result<std::shared_ptr<grpc::Channel>> OpenChannel(const std::string& endpoint,
                                                   const GlobalOptions& options);

/// Turns a gRPC status into an error message: `peer` is, for example, "the coordinator at
/// 127.0.0.1:7070", `hint` what to do when it cannot be reached. An error that the peer itself sent
/// keeps its code.
Status FromTransport(const grpc::Status& status, const std::string& peer, int64_t timeout_ms,
                     const std::string& hint);

/// Returns whether the server was too busy for the handshake within gRPC's short connection
/// time-out. Unlike a refused connection, this is worth another try.
bool IsSlowHandshake(const grpc::Status& status);

/// The pause between two tries.
inline constexpr int64_t kRetryPauseMs = 150;

/// Cancels a call that has been silent for too long.
class SilenceGuard {
 public:
  /// `clock` outlives the guard.
  SilenceGuard(grpc::ClientContext& call, int64_t timeout_ms, const Clock& clock);
  ~SilenceGuard();
  SilenceGuard(const SilenceGuard&) = delete;
  SilenceGuard& operator=(const SilenceGuard&) = delete;

  /// Restarts the time-out when data arrives.
  void Touch();
  /// Stops the time-out while the receiver processes data.
  void Pause();
  bool expired();

 private:
  void Watch();

  grpc::ClientContext& call_;
  const std::chrono::nanoseconds timeout_;
  const Clock& clock_;
  Mutex mutex_;
  CondVar changed_;
  Clock::TimePoint until_ HOLDFAST_GUARDED_BY(mutex_);
  bool paused_ HOLDFAST_GUARDED_BY(mutex_) = false;
  bool expired_ HOLDFAST_GUARDED_BY(mutex_) = false;
  bool stopped_ HOLDFAST_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

/// How a stream ended that the server sent.
struct StreamEnd {
  grpc::Status finished;
  bool any = false;  // a message has arrived
};

/// Passes the messages of the stream that `open` starts to `take`, until the stream ends or `take`
/// fails. A server that is silent for `timeout_ms` ends it with DEADLINE_EXCEEDED. Returns the
/// error of `take`, or Cancelled when the command is interrupted.
template <typename Message, typename Open, typename Take>
Result<StreamEnd> ReadStream(int64_t timeout_ms, const Clock& clock, const Open& open,
                             const Take& take) {
  grpc::ClientContext call;
  OnInterrupt cancel([&call] { call.TryCancel(); });
  SilenceGuard guard(call, timeout_ms, clock);
  const auto stream = open(&call);
  StreamEnd end;
  Message message;
  Status taken;
  while (taken.ok() && stream->Read(&message)) {
    end.any = true;
    guard.Pause();
    taken = take(message);
    guard.Touch();
  }
  if (!taken.ok()) call.TryCancel();
  end.finished = stream->Finish();
  HOLDFAST_RETURN_IF_ERROR(Interrupt::Check());
  HOLDFAST_RETURN_IF_ERROR(taken);
  if (guard.expired()) end.finished = {grpc::StatusCode::DEADLINE_EXCEEDED, "silent"};
  return end;
}

}  // namespace holdfast::cli
