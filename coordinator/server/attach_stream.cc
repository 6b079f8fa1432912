#include "coordinator/server/attach_stream.h"

#include "coordinator/api/convert.h"
#include "coordinator/api/run_convert.h"

namespace holdfast::coord {
namespace {
/// Converts a directive. A Welcome has only the epoch and the life.
pb::Directive ToWire(Epoch epoch, const Directive& directive) {
  pb::Directive wire;
  wire.set_epoch(epoch.value);
  if (const auto* welcome = std::get_if<Welcome>(&directive)) wire.set_life(welcome->life.value);
  if (const auto* state = std::get_if<JobState>(&directive)) ToProto(*state, wire.mutable_job());
  if (const auto* prepare = std::get_if<PrepareShard>(&directive)) {
    ToProto(*prepare, wire.mutable_prepare());
  }
  if (const auto* remove = std::get_if<RemoveVersion>(&directive)) {
    ToProto(*remove, wire.mutable_remove());
  }
  if (const auto* workers = std::get_if<SetWorkers>(&directive)) {
    ToProto(*workers, wire.mutable_workers());
  }
  return wire;
}
}  // namespace

std::shared_ptr<AttachStream> AttachStream::Make(std::function<void()> on_end) {
  std::shared_ptr<AttachStream> stream(new AttachStream(std::move(on_end)));
  stream->self_ = stream;
  return stream;
}

void AttachStream::Push(Epoch epoch, const Directive& directive) {
  pb::Directive wire = ToWire(epoch, directive);
  {
    MutexLock lock(mutex_);
    if (closing_) return;
    if (wire.has_job()) {
      // The head of the queue may be in the middle of its write.
      for (size_t i = writing_ ? 1 : 0; i < queue_.size(); ++i) {
        if (!queue_[i].has_job() || queue_[i].job().job() != wire.job().job()) continue;
        queue_[i] = std::move(wire);
        return;
      }
    }
    queue_.push_back(std::move(wire));
  }
  Next();
}

void AttachStream::Close(const Status& why) {
  {
    MutexLock lock(mutex_);
    if (closing_) return;
    closing_ = true;
    end_ = ToGrpc(why);
  }
  Next();
}

void AttachStream::Next() {
  const pb::Directive* write = nullptr;
  grpc::Status end;
  {
    MutexLock lock(mutex_);
    if (writing_ || finished_) return;
    if (closing_) {
      finished_ = true;
      end = end_;
    } else if (!queue_.empty()) {
      writing_ = true;
      write = &queue_.front();  // stays valid: push_back moves no element of a deque
    } else {
      return;
    }
  }
  if (write != nullptr) {
    StartWrite(write);
  } else {
    Finish(end);
  }
}

void AttachStream::OnWriteDone(bool ok) {
  {
    MutexLock lock(mutex_);
    writing_ = false;
    queue_.pop_front();
    if (!ok) closing_ = true;
  }
  Next();
}

void AttachStream::OnCancel() {
  on_end_();
  Close(CancelledError("the agent disconnected"));
}

void AttachStream::OnDone() {
  on_end_();
  // This may be the last reference; it must outlive the call.
  std::shared_ptr<AttachStream> self = std::move(self_);
}

}  // namespace holdfast::coord
