#pragma once

#include <grpcpp/grpcpp.h>

#include <string_view>
#include <utility>

#include "coordinator/server/applier.h"
#include "coordinator/server/auditor.h"
#include "coordinator/server/calls.h"

namespace holdfast::coord {

/// Carries out the calls that change the cluster: each is recorded before and after the applier
/// decides it. Thread-safe after RecordIn().
class RecordedCalls {
 public:
  /// `applier` outlives the object.
  explicit RecordedCalls(Applier& applier) : applier_(applier) {}

  /// `auditor` outlives the object. Before the first call.
  void RecordIn(Auditor& auditor) { auditor_ = &auditor; }
  /// Null before RecordIn().
  Auditor* auditor() const { return auditor_; }

  /// Records that a call begins. After an error the call must not be carried out.
  Result<uint64_t> Begin(grpc::CallbackServerContext& context, std::string_view method,
                         const google::protobuf::Message& request) {
    if (auditor_ == nullptr) return Fail(InternalError("this coordinator has no audit log"));
    return auditor_->Begin(context, method, request);
  }

  /// Submits the event that `event_of` returns for the number of the request. `fill` writes the
  /// rest of an answer. `method` is a literal.
  template <typename Request, typename ReplyProto, typename EventOf, typename Fill>
  grpc::ServerUnaryReactor* CarryOut(grpc::CallbackServerContext* context, std::string_view method,
                                     const Request& request, ReplyProto* reply,
                                     const EventOf& event_of, Fill fill) {
    const auto begun = Begin(*context, method, request);
    if (!begun) return ReplyOutcome(context, reply, begun.error());
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    const RequestId id = applier_.NextId();
    auto answer = AnswerInto(applier_, reactor, reply, std::move(fill));
    applier_.Submit(event_of(id), id, Recorded(*begun, method, std::move(answer)));
    return reactor;
  }
  /// The same for a call whose answer is only the outcome.
  template <typename Request, typename ReplyProto, typename EventOf>
  grpc::ServerUnaryReactor* CarryOut(grpc::CallbackServerContext* context, std::string_view method,
                                     const Request& request, ReplyProto* reply,
                                     const EventOf& event_of) {
    return CarryOut(context, method, request, reply, event_of, [](const Reply&) {});
  }

 private:
  /// Returns a handler that records the outcome of the call `begun` before it calls `next`.
  Applier::ReplyHandler Recorded(uint64_t begun, std::string_view method,
                                 Applier::ReplyHandler next) {
    return [auditor = auditor_, begun, method, next = std::move(next)](const Reply* reply) {
      const Status unknown = UnavailableError("the coordinator lost its state during the call");
      auditor->End(begun, method, reply == nullptr ? unknown : reply->outcome);
      next(reply);
    };
  }

  Applier& applier_;
  Auditor* auditor_ = nullptr;
};

}  // namespace holdfast::coord
