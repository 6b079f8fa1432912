#include "coordinator/api/access_guard.h"

#include <fmt/format.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <grpc/byte_buffer_reader.h>
#include <grpcpp/impl/codegen/method_handler.h>
#include <grpcpp/impl/codegen/server_callback_handlers.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <chrono>

#include "base/clock.h"
#include "base/log.h"
#include "coordinator/api/convert.h"
#include "coordinator/api/job_rule.h"

namespace holdfast::coord {
namespace {
using grpc::ByteBuffer;
using grpc::internal::MethodHandler;
using grpc::internal::RpcMethod;

constexpr Clock::Duration kLogInterval = std::chrono::seconds(1);
/// Largest request of a caller that is only a user. A run has the largest ones.
constexpr size_t kUserRequestBytesMax = 4 << 20;

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

/// Parses a request; null if it is too large or no message of its kind.
std::unique_ptr<google::protobuf::Message> Parse(grpc_byte_buffer* request,
                                                 const google::protobuf::Descriptor& kind) {
  if (grpc_byte_buffer_length(request) > kUserRequestBytesMax) return nullptr;
  grpc_byte_buffer_reader reader;
  if (grpc_byte_buffer_reader_init(&reader, request) == 0) return nullptr;
  grpc_slice bytes = grpc_byte_buffer_reader_readall(&reader);
  grpc_byte_buffer_reader_destroy(&reader);
  std::unique_ptr<google::protobuf::Message> message(
      google::protobuf::MessageFactory::generated_factory()->GetPrototype(&kind)->New());
  const bool parsed = message->ParseFromArray(GRPC_SLICE_START_PTR(bytes),
                                              static_cast<int>(GRPC_SLICE_LENGTH(bytes)));
  grpc_slice_unref(bytes);
  return parsed ? std::move(message) : nullptr;
}

/// Checks the caller of each call of one method, and passes permitted calls to the method's own
/// handler.
class GuardedHandler : public MethodHandler {
 public:
  GuardedHandler(const AccessRule& rule, const google::protobuf::Descriptor& request,
                 MethodHandler& next, bool callback, bool streams, const CallerRegistry& callers,
                 const JobOwners& owners, const Clock& clock)
      : rule_(rule),
        request_(request),
        next_(next),
        callback_(callback),
        streams_(streams),
        callers_(callers),
        owners_(owners),
        clock_(clock) {}

  /// gRPC calls this first: the method's own handler has not parsed the request yet.
  void* Deserialize(grpc_call* call, grpc_byte_buffer* request, grpc::Status* status,
                    void** handler_data) override {
    const Caller caller = callers_.Identify(call);
    const Status allowed = Check(caller, request);
    if (allowed.ok()) return next_.Deserialize(call, request, status, handler_data);
    const Status refused =
        PermissionDeniedError(fmt::format("{}.{}: {}. {} (docs/security.md)", rule_.service,
                                          rule_.method, allowed.message(), caller.remedy));
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
  Status Check(const Caller& caller, grpc_byte_buffer* bytes) const {
    if ((caller.roles & rule_.roles) != 0) return Status::Ok();
    std::string job;
    if (rule_.users != UserRule::kNever && (caller.roles & Only(Role::kUser)) != 0) {
      const auto request = Parse(bytes, request_);
      if (request == nullptr) return PermissionDeniedError("the request is too large or damaged");
      job = JobNamedIn(rule_, *request);
    }
    return CheckUserRule(rule_, caller, job, owners_.Find(job));
  }

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
  const google::protobuf::Descriptor& request_;
  MethodHandler& next_;
  const bool callback_;
  const bool streams_;
  const CallerRegistry& callers_;
  const JobOwners& owners_;
  const Clock& clock_;
  std::atomic<int64_t> log_due_{0};
};
}  // namespace

Result<std::unique_ptr<GuardedService>> GuardedService::Make(
    grpc::Service& service, const std::string& name, std::string cluster, AccessOptions options,
    const Clock& clock, const JobOwners* owners) {
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
    auto handler = std::make_unique<GuardedHandler>(
        *rule, *method.input_type(), *ServiceMembers::Handler(service, i), callback, streams,
        guarded->callers_, owners == nullptr ? guarded->none_ : *owners, clock);
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
