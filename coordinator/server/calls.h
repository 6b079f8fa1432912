#pragma once

#include <grpcpp/grpcpp.h>

#include "coordinator/api/convert.h"
#include "coordinator/server/applier.h"

// How calls that the applier answers are ended.

namespace holdfast::coord {

inline grpc::Status Unknown() {
  return {grpc::StatusCode::UNAVAILABLE, "the coordinator reads its store again; try again"};
}

/// Answers a unary call with `outcome` alone.
template <typename ReplyProto>
grpc::ServerUnaryReactor* Refuse(grpc::CallbackServerContext* context, ReplyProto* reply,
                                 const Status& outcome) {
  ToProto(outcome, reply->mutable_outcome());
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

/// Handler that writes the outcome and lets `fill` add the rest.
template <typename ReplyProto, typename Fill>
Applier::ReplyHandler AnswerInto(grpc::ServerUnaryReactor* reactor, ReplyProto* proto, Fill fill) {
  return [reactor, proto, fill](const Reply* reply) {
    if (reply == nullptr) return reactor->Finish(Unknown());
    ToProto(reply->outcome, proto->mutable_outcome());
    fill(*reply);
    reactor->Finish(grpc::Status::OK);
  };
}

}  // namespace holdfast::coord
