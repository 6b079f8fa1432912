#include "coordinator/api/access_guard.h"

#include <fmt/format.h>
#include <google/protobuf/descriptor.h>
#include <grpcpp/impl/codegen/method_handler.h>
#include <grpcpp/impl/codegen/server_callback_handlers.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <chrono>

#include "base/clock.h"
#include "base/log.h"
#include "coordinator/api/convert.h"

namespace holdfast::coord {
namespace {
using grpc::ByteBuffer;
using grpc::internal::MethodHandler;
using grpc::internal::RpcMethod;

constexpr Clock::Duration kLogInterval = std::chrono::seconds(1);

/// Names a protected member of grpc::Service.
struct ServiceMembers : grpc::Service {
  static MethodHandler* Handler(grpc::Service& service, int index) {
    return (service.*&ServiceMembers::GetHandler)(index);
  }
};

/// A stream that ends at once.
class RefusedStream : public grpc::ServerWriteReactor<ByteBuffer> {
 public:
  explicit RefusedStream(const grpc::Status& status) { Finish(status); }
  void OnDone() override { std::unique_ptr<RefusedStream> last(this); }
};

/// Checks the caller of each call of one method, and passes permitted calls to the method's own
/// handler.
class GuardedHandler : public MethodHandler {
 public:
  GuardedHandler(const AccessRule& rule, MethodHandler& next, bool callback, bool streams,
                 const CallerRegistry& callers, const Clock& clock)
      : rule_(rule),
        next_(next),
        callback_(callback),
        streams_(streams),
        callers_(callers),
        clock_(clock) {}

  /// gRPC calls this first: the request is not parsed yet.
  void* Deserialize(grpc_call* call, grpc_byte_buffer* request, grpc::Status* status,
                    void** handler_data) override {
    const Caller caller = callers_.Identify(call);
    if ((caller.roles & rule_.roles) != 0) {
      return next_.Deserialize(call, request, status, handler_data);
    }
    const Status refused = PermissionDeniedError(fmt::format(
        "{}.{} needs the role {}; {} has {}. {} (docs/security.md)", rule_.service, rule_.method,
        ToString(rule_.roles), caller.name, ToString(caller.roles), caller.remedy));
    if (MayLog()) {
      Log(LogLevel::kWarn, "CallRefused",
          {Kv("method", rule_.method), Kv("caller", caller.name), Kv("from", caller.from),
           Kv("roles", ToString(caller.roles)), Kv("needed", ToString(rule_.roles))});
    }
    void* parsed = Refuse({})->Deserialize(call, request, status, handler_data);
    *status = ToGrpc(refused);
    return parsed;
  }

  void RunHandler(const HandlerParameter& parameter) override {
    // Deserializers have no other reason for this code.
    if (parameter.status.error_code() != grpc::StatusCode::PERMISSION_DENIED) {
      return next_.RunHandler(parameter);
    }
    Refuse(parameter.status)
        ->RunHandler({parameter.call, parameter.server_context, parameter.request, grpc::Status::OK,
                      parameter.internal_data, parameter.call_requester});
  }

 private:
  /// Returns true at most once a second, so that a flood of refused calls fills no log.
  bool MayLog() {
    const int64_t now = clock_.Now().time_since_epoch().count();
    int64_t due = log_due_.load();
    return now >= due && log_due_.compare_exchange_strong(due, now + kLogInterval.count());
  }

  /// Returns a handler that ends a call with `status`, for the API of the service.
  std::unique_ptr<MethodHandler> Refuse(const grpc::Status& status) const {
    using grpc::internal::CallbackServerStreamingHandler;
    using grpc::internal::CallbackUnaryHandler;
    if (!callback_) {
      using Handler = grpc::internal::ErrorMethodHandler<grpc::StatusCode::PERMISSION_DENIED>;
      return std::make_unique<Handler>(status.error_message());
    }
    if (streams_) {
      return std::make_unique<CallbackServerStreamingHandler<ByteBuffer, ByteBuffer>>(
          [status](grpc::CallbackServerContext*, const ByteBuffer*) {
            return std::make_unique<RefusedStream>(status).release();  // deletes itself in OnDone
          });
    }
    return std::make_unique<CallbackUnaryHandler<ByteBuffer, ByteBuffer>>(
        [status](grpc::CallbackServerContext* context, const ByteBuffer*, ByteBuffer*) {
          grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
          reactor->Finish(status);
          return reactor;
        });
  }

  const AccessRule& rule_;
  MethodHandler& next_;
  const bool callback_;
  const bool streams_;
  const CallerRegistry& callers_;
  const Clock& clock_;
  std::atomic<int64_t> log_due_{0};
};
}  // namespace

Result<std::unique_ptr<GuardedService>> GuardedService::Make(grpc::Service& service,
                                                             const std::string& name,
                                                             std::string cluster,
                                                             AccessOptions options,
                                                             const Clock& clock) {
  const auto* descriptor =
      google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(name);
  if (descriptor == nullptr) return Fail(InternalError("no service is named " + name));
  std::unique_ptr<GuardedService> guarded(
      new GuardedService(std::move(cluster), std::move(options), clock));
  const bool callback = service.has_callback_methods();
  for (int i = 0; i < descriptor->method_count(); ++i) {
    const auto& method = *descriptor->method(i);
    const AccessRule* rule = FindAccessRule(name, method.name());
    if (rule == nullptr) {
      return Fail(InternalError(fmt::format(
          "{}.{} has no rule: add one to coordinator/api/access.cc", name, method.name())));
    }
    if (method.client_streaming()) {
      return Fail(
          InternalError(fmt::format("{}.{}: the guard does not support requests that are "
                                    "streams",
                                    name, method.name())));
    }
    const bool streams = method.server_streaming();
    auto handler = std::make_unique<GuardedHandler>(*rule, *ServiceMembers::Handler(service, i),
                                                    callback, streams, guarded->callers_, clock);
    guarded->paths_.push_back(fmt::format("/{}/{}", name, method.name()));
    guarded->AddMethod(std::make_unique<grpc::internal::RpcServiceMethod>(
                           guarded->paths_.back().c_str(),
                           streams ? RpcMethod::SERVER_STREAMING : RpcMethod::NORMAL_RPC,
                           callback ? nullptr : handler.release())
                           .release());
    if (callback) guarded->MarkMethodCallback(i, handler.release());
  }
  return guarded;
}

}  // namespace holdfast::coord
