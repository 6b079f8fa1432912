#include "coordinator/api/directive_stream.h"

#include <algorithm>

#include "coordinator/api/convert.h"

namespace holdfast::coord {

std::shared_ptr<DirectiveStream> DirectiveStream::Make(std::function<void()> on_end) {
  std::shared_ptr<DirectiveStream> stream(new DirectiveStream(std::move(on_end)));
  stream->BelongToCall(stream);
  return stream;
}

void DirectiveStream::Push(coordinator::Directive wire) {
  {
    MutexLock lock(mutex_);
    if (closing_) return;
    const auto older = std::ranges::find_if(queue_, [&](const coordinator::Directive& queued) {
      return wire.has_job() && queued.has_job() && queued.job().job() == wire.job().job();
    });
    if (older != queue_.end()) {
      *older = std::move(wire);
      return;
    }
    queue_.push_back(std::move(wire));
  }
  Next();
}

void DirectiveStream::Close(const Status& why) { End(ToGrpc(why)); }

std::optional<coordinator::Directive> DirectiveStream::Take() {
  if (queue_.empty()) return std::nullopt;
  coordinator::Directive next = std::move(queue_.front());
  queue_.pop_front();
  return next;
}

void DirectiveStream::OnCancel() {
  on_end_();
  Close(CancelledError("the agent disconnected"));
}

void DirectiveStream::OnDone() {
  on_end_();
  StreamWriter::OnDone();
}

}  // namespace holdfast::coord
