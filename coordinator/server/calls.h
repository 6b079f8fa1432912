#pragma once

#include <grpcpp/grpcpp.h>

#include <string>
#include <type_traits>
#include <utility>

#include "coordinator/api/convert.h"
#include "coordinator/server/applier.h"

// Helpers to end calls that the applier answers.

namespace holdfast::coord {

inline grpc::Status StateUnknown(const Applier& applier) {
  const std::string why = applier.why_not_loaded();
  return {grpc::StatusCode::UNAVAILABLE,
          why.empty() ? "the coordinator loads its store again, or has stopped (see `holdfast "
                        "status`); try again"
                      : "the coordinator cannot load its store and tries again: " + why};
}

/// Ends a call whose query was not accepted. gRPC's clients wait for the time in the trailer.
inline void FinishTooManyReads(grpc::CallbackServerContext* context,
                               grpc::ServerUnaryReactor* reactor) {
  context->AddTrailingMetadata("grpc-retry-pushback-ms",
                               std::to_string(Reads::kRetryAfter.count()));
  reactor->Finish({grpc::StatusCode::RESOURCE_EXHAUSTED,
                   std::to_string(Reads::kWaitingMax) +
                       " reads wait for their answers already, the limit; try again in " +
                       std::to_string(Reads::kRetryAfter.count()) + " ms"});
}

/// Ends a unary call at once with `outcome`, which may be OK.
template <typename ReplyProto>
grpc::ServerUnaryReactor* ReplyOutcome(grpc::CallbackServerContext* context, ReplyProto* reply,
                                       const Status& outcome) {
  ToProto(outcome, reply->mutable_outcome());
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

/// Answers a call by a query: `fill` gets a State and its epoch, or a Supervisor.
template <typename Fill>
grpc::ServerUnaryReactor* AnswerQuery(Applier& applier, grpc::CallbackServerContext* context,
                                      Fill fill) {
  using Query = std::conditional_t<std::is_invocable_v<Fill, const State&, Epoch>,
                                   Applier::StateQuery, Applier::SupervisorQuery>;
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const bool accepted = applier.Query(
      Query([&applier, reactor, fill = std::move(fill)](const auto* data, const auto&... epoch) {
        if (data == nullptr) return reactor->Finish(StateUnknown(applier));
        fill(*data, epoch...);
        reactor->Finish(grpc::Status::OK);
      }));
  if (!accepted) FinishTooManyReads(context, reactor);
  return reactor;
}

/// Returns a handler that writes the outcome of the reply, calls `fill` for the rest, and ends the
/// call.
template <typename ReplyProto, typename Fill>
Applier::ReplyHandler AnswerInto(const Applier& applier, grpc::ServerUnaryReactor* reactor,
                                 ReplyProto* proto, Fill fill) {
  return [&applier, reactor, proto, fill](const Reply* reply) {
    if (reply == nullptr) return reactor->Finish(StateUnknown(applier));
    ToProto(reply->outcome, proto->mutable_outcome());
    fill(*reply);
    reactor->Finish(grpc::Status::OK);
  };
}

}  // namespace holdfast::coord
