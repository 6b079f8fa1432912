#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <optional>
#include <utility>

#include "base/mutex.h"

namespace holdfast::coord {

/// A server's stream to one client, which writes one message at a time. gRPC owns the stream until
/// the call ends. Threads: any.
template <typename Message>
class StreamWriter : public grpc::ServerWriteReactor<Message> {
 public:
  void OnWriteDone(bool ok) override {
    bool ends = false;
    {
      MutexLock lock(mutex_);
      writing_ = false;
      if (!ok) closing_ = true;
      ends = closing_;
    }
    if (ends) {
      Next();
    } else {
      OnWritten();
    }
  }
  void OnDone() override {
    // This may be the last reference; it must outlive the call.
    const std::shared_ptr<void> self = std::move(self_);
  }

 protected:
  /// Before gRPC gets the stream.
  void BelongToCall(std::shared_ptr<void> self) { self_ = std::move(self); }
  /// Takes the message to write next; nullopt: none waits.
  virtual std::optional<Message> Take() HOLDFAST_REQUIRES(mutex_) = 0;
  /// A message was written, and the stream does not end.
  virtual void OnWritten() { Next(); }

  /// Starts the next write, or ends the call. Call without the lock, since gRPC's callbacks take
  /// it.
  void Next() {
    std::optional<grpc::Status> end;
    {
      MutexLock lock(mutex_);
      if (writing_ || finished_) return;
      if (closing_) {
        finished_ = true;
        end = end_;
      } else if (auto message = Take()) {
        writing_ = true;
        message_ = *std::move(message);
      } else {
        return;
      }
    }
    if (end) {
      this->Finish(*end);
    } else {
      this->StartWrite(&message_);
    }
  }
  /// Ends the call after the current write. No message follows.
  void End(const grpc::Status& why) {
    {
      MutexLock lock(mutex_);
      if (closing_) return;
      closing_ = true;
      end_ = why;
    }
    Next();
  }

  Mutex mutex_;
  bool closing_ HOLDFAST_GUARDED_BY(mutex_) = false;

 private:
  std::shared_ptr<void> self_;  // gRPC's reference
  Message message_;             // in the write
  bool writing_ HOLDFAST_GUARDED_BY(mutex_) = false;
  bool finished_ HOLDFAST_GUARDED_BY(mutex_) = false;
  grpc::Status end_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast::coord
