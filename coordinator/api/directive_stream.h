#pragma once

#include <grpcpp/grpcpp.h>

#include <deque>
#include <functional>
#include <memory>

#include "base/mutex.h"
#include "base/status.h"
#include "coordinator/api/coordinator.grpc.pb.h"

namespace holdfast::coord {

/// One agent's Attach call: writes directives in order. A newer JobState replaces a queued one of
/// the same job, so the queue stays short even if the agent is slow. gRPC owns the stream until the
/// call ends, and its sender until the sender has closed the stream. Threads: any.
class DirectiveStream : public grpc::ServerWriteReactor<coordinator::Directive> {
 public:
  /// Calls `on_end` when the agent disconnects and when the call ends, so possibly twice.
  static std::shared_ptr<DirectiveStream> Make(std::function<void()> on_end);

  void Push(coordinator::Directive directive);
  /// Ends the call with the status `why`; OK is an orderly end. No directive follows.
  void Close(const Status& why);

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  explicit DirectiveStream(std::function<void()> on_end) : on_end_(std::move(on_end)) {}
  /// Starts the next write, or ends the call. Call without the lock, since gRPC's callbacks take
  /// it.
  void Next();

  const std::function<void()> on_end_;
  std::shared_ptr<DirectiveStream> self_;  // gRPC's reference

  Mutex mutex_;
  std::deque<coordinator::Directive> queue_ HOLDFAST_GUARDED_BY(mutex_);
  bool writing_ HOLDFAST_GUARDED_BY(mutex_) = false;
  bool closing_ HOLDFAST_GUARDED_BY(mutex_) = false;
  bool finished_ HOLDFAST_GUARDED_BY(mutex_) = false;
  grpc::Status end_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast::coord
