#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>

#include "base/status.h"
#include "coordinator/api/coordinator.grpc.pb.h"
#include "coordinator/api/stream_writer.h"

namespace holdfast::coord {

/// One agent's Attach call: writes directives in order. A newer JobState replaces a queued one of
/// the same job, so the queue stays short even if the agent is slow. The sender also owns the
/// stream, until the sender has closed it.
class DirectiveStream : public StreamWriter<coordinator::Directive> {
 public:
  /// Calls `on_end` when the agent disconnects and when the call ends, so possibly twice.
  static std::shared_ptr<DirectiveStream> Make(std::function<void()> on_end);

  void Push(coordinator::Directive directive);
  /// Ends the call with the status `why`; OK is an orderly end. No directive follows.
  void Close(const Status& why);

  void OnCancel() override;
  void OnDone() override;

 private:
  explicit DirectiveStream(std::function<void()> on_end) : on_end_(std::move(on_end)) {}
  std::optional<coordinator::Directive> Take() override HOLDFAST_REQUIRES(mutex_);

  const std::function<void()> on_end_;
  std::deque<coordinator::Directive> queue_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast::coord
