#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>

#include "base/status.h"
#include "coordinator/api/convert.h"

namespace holdfast::coord {

/// A stream to a client that ends at once, with an error and without a message.
template <typename Message>
class RefusedStream : public grpc::ServerWriteReactor<Message> {
 public:
  /// gRPC owns the stream until the call ends.
  static grpc::ServerWriteReactor<Message>* Make(const Status& why) {
    auto* stream = std::make_unique<RefusedStream>().release();  // deletes itself in OnDone
    stream->Finish(ToGrpc(why));
    return stream;
  }
  void OnDone() override { std::unique_ptr<RefusedStream> last(this); }
};

}  // namespace holdfast::coord
