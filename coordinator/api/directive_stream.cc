#include "coordinator/api/directive_stream.h"

#include "coordinator/api/convert.h"

namespace holdfast::coord {

std::shared_ptr<DirectiveStream> DirectiveStream::Make(std::function<void()> on_end) {
  std::shared_ptr<DirectiveStream> stream(new DirectiveStream(std::move(on_end)));
  stream->self_ = stream;
  return stream;
}

void DirectiveStream::Push(coordinator::Directive wire) {
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

void DirectiveStream::Close(const Status& why) {
  {
    MutexLock lock(mutex_);
    if (closing_) return;
    closing_ = true;
    end_ = ToGrpc(why);
  }
  Next();
}

void DirectiveStream::Next() {
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

void DirectiveStream::OnWriteDone(bool ok) {
  {
    MutexLock lock(mutex_);
    writing_ = false;
    queue_.pop_front();
    if (!ok) closing_ = true;
  }
  Next();
}

void DirectiveStream::OnCancel() {
  on_end_();
  Close(CancelledError("the agent disconnected"));
}

void DirectiveStream::OnDone() {
  on_end_();
  // This may be the last reference; it must outlive the call.
  std::shared_ptr<DirectiveStream> self = std::move(self_);
}

}  // namespace holdfast::coord
