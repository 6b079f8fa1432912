#pragma once

#include <grpcpp/grpcpp.h>

#include <deque>
#include <functional>
#include <memory>

#include "coordinator/api/coordinator.grpc.pb.h"
#include "coordinator/server/applier.h"
#include "storage/base/mutex.h"

namespace holdfast::coord {

/// One agent's Attach call: writes directives in order. A JobState that waits behind a slow agent
/// is replaced by a newer one of its job, so the queue stays short. Owned by gRPC until the call is
/// over and by the applier until it closed it. Threads: any.
class AttachStream : public grpc::ServerWriteReactor<coordinator::Directive>, public DirectiveSink {
 public:
  /// `on_end` is called once, when the agent is gone or the stream was closed.
  static std::shared_ptr<AttachStream> Make(std::function<void()> on_end);

  void Push(Epoch epoch, const Directive& directive) override;
  void Close(const Status& why) override;

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  explicit AttachStream(std::function<void()> on_end) : on_end_(std::move(on_end)) {}
  /// Starts what is due: the next write or the end. Called without the lock, which gRPC's reactions
  /// take.
  void Next();

  const std::function<void()> on_end_;
  std::shared_ptr<AttachStream> self_;  // gRPC's share

  Mutex mutex_;
  std::deque<coordinator::Directive> queue_ HOLDFAST_GUARDED_BY(mutex_);
  bool writing_ HOLDFAST_GUARDED_BY(mutex_) = false;
  bool closing_ HOLDFAST_GUARDED_BY(mutex_) = false;
  bool finished_ HOLDFAST_GUARDED_BY(mutex_) = false;
  grpc::Status end_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast::coord
