#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/server_interceptor.h>

#include <memory>

#include "coordinator/etcd/session.h"

namespace holdfast::coord {

/// Returns a factory of interceptors that complete each Unavailable and each PermissionDenied of a
/// coordinator that stands by. Both become Unavailable: the message has the reason, and the
/// trailing metadata kLeaderMetadata names the leader, if one is known. `session` outlives the
/// server.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeLeaderHints(
    EtcdSession& session);

}  // namespace holdfast::coord
