#include "faults/injector/service.h"

#include <fmt/format.h>

#include "base/ids.h"
#include "base/log.h"
#include "faults/api/protocol.h"

namespace holdfast::faults {

Status InjectorService::Check(const InjectRequest& request) const {
  if (request.protocol() != kProtocol) {
    return FailedPreconditionError(
        fmt::format("this fault injector has protocol {} and the command has {}: install the same "
                    "release on both",
                    kProtocol, request.protocol()));
  }
  if (request.cluster() != identity_.cluster) {
    return FailedPreconditionError(
        fmt::format("this fault injector is of cluster '{}' and the job of cluster '{}'",
                    identity_.cluster, request.cluster()));
  }
  if (!request.node().empty() && request.node() != identity_.node) {
    return FailedPreconditionError(
        fmt::format("this fault injector serves node '{}' and not '{}': correct `node` in its "
                    "configuration, or the address of --injector",
                    identity_.node, request.node()));
  }
  const int64_t late_ms = (clock_.WallNanos() - request.sent_wall_nanos()) / 1'000'000;
  if (late_ms > kLateMsMax || late_ms < -kLateMsMax) {
    return FailedPreconditionError(
        fmt::format("the request was sent {} s ago by the clock of this machine: its drill may be "
                    "over, or the two clocks differ",
                    late_ms / 1000));
  }
  if (identity_.enabled) return Status::Ok();
  return FailedPreconditionError(
      "drills are not enabled here: set drills.enabled = true in the configuration of "
      "holdfast-fault and restart it");
}

grpc::Status InjectorService::Inject(grpc::ServerContext* context, const InjectRequest* request,
                                     InjectReply* reply) {
  // A caller that no longer waits would not end the fault.
  if (context->IsCancelled()) return grpc::Status::CANCELLED;
  const Status allowed = Check(*request);
  Result<std::string> what = allowed.ok() ? faults_.Inject(*request) : Fail(allowed);
  if (what) {
    reply->set_what(*std::move(what));
  } else {
    reply->set_code(static_cast<uint32_t>(what.error().code()));
    reply->set_message(what.error().message());
  }
  return grpc::Status::OK;
}

grpc::Status InjectorService::End(grpc::ServerContext* /*context*/, const EndRequest* request,
                                  EndReply* reply) {
  Status status = ValidateName("drill", request->drill());
  if (status.ok()) status = book_.End(request->drill());
  reply->set_code(static_cast<uint32_t>(status.code()));
  reply->set_message(status.message());
  return grpc::Status::OK;
}

}  // namespace holdfast::faults
