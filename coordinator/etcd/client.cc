#include "coordinator/etcd/client.h"

#include <fmt/format.h>
#include <grpc/support/time.h>

namespace holdfast::coord {
namespace {
constexpr int kBackoffMinMs = 50;
constexpr int kBackoffMaxMs = 500;
constexpr int kConnectMs = 1'000;

/// gRPC on 1.51 counts deadlines by the wall clock or by this one; a jump of the wall clock must
/// not end a call.
gpr_timespec After(EtcdClient::Timeout timeout) {
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                      gpr_time_from_millis(timeout.count(), GPR_TIMESPAN));
}

bool Mentions(const grpc::Status& status, std::string_view text) {
  return status.error_message().find(text) != std::string::npos;
}

/// etcd's errors: every code but Unavailable means that nothing was applied.
Status Definite(const grpc::Status& status, std::string text) {
  switch (status.error_code()) {
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      if (Mentions(status, "space exceeded")) {
        return OutOfSpaceError(
            text +
            "; etcd's quota is used up: compact and defragment it, then run 'etcdctl alarm "
            "disarm'");
      }
      if (Mentions(status, "larger than max")) return ResourceExhaustedError(std::move(text));
      break;  // "too many requests" and the like: the outcome is unknown
    case grpc::StatusCode::INVALID_ARGUMENT:
      if (Mentions(status, "too large")) return ResourceExhaustedError(std::move(text));
      return FailedPreconditionError(std::move(text));
    case grpc::StatusCode::OUT_OF_RANGE:
      return AbortedError(std::move(text));
    case grpc::StatusCode::NOT_FOUND:
      return NotFoundError(std::move(text));
    case grpc::StatusCode::PERMISSION_DENIED:
    case grpc::StatusCode::UNAUTHENTICATED:
      return PermissionDeniedError(std::move(text));
    case grpc::StatusCode::UNIMPLEMENTED:
      return FailedPreconditionError(text + "; is this an etcd with the v3 API?");
    default:
      break;
  }
  return UnavailableError(std::move(text));
}
}  // namespace

/// One call: its context is known to the client, so that Shutdown() can cancel it.
class EtcdClient::Call {
 public:
  Call(EtcdClient& client, Timeout timeout) : client_(client) {
    context_.set_deadline(After(timeout));
    // A member without a leader then refuses the call at once.
    context_.AddMetadata("hasleader", "true");
    MutexLock lock(client_.mutex_);
    started_ = !client_.stopped_;
    if (started_) client_.calls_.insert(&context_);
  }
  ~Call() {
    MutexLock lock(client_.mutex_);
    client_.calls_.erase(&context_);
  }
  bool started() const { return started_; }
  grpc::ClientContext* context() { return &context_; }

 private:
  EtcdClient& client_;
  grpc::ClientContext context_;
  bool started_ = false;
};

namespace {
Status Stopped() { return CancelledError("the connection to etcd is closed"); }
}  // namespace

Result<std::unique_ptr<EtcdClient>> EtcdClient::Make(const std::vector<Endpoint>& members,
                                                     const TlsFiles& tls) {
  std::unique_ptr<EtcdClient> client(new EtcdClient());
  for (const Endpoint& endpoint : members) {
    auto credentials = MakeChannelCredentials(endpoint, tls);
    if (!credentials)
      return Fail(credentials.error().WithContext(
          "store (its TLS files are etcd.ca, etcd.cert and etcd.key)"));
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kBackoffMinMs);
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectMs);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kBackoffMaxMs);
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetMaxReceiveMessageSize(kControlMessageBytesMax);
    arguments.SetMaxSendMessageSize(kControlMessageBytesMax);
    auto channel = grpc::CreateCustomChannel(GrpcTarget(endpoint), *credentials, arguments);
    Member member;
    member.name = "etcd at " + endpoint.ToString();
    member.kv = etcd::KV::NewStub(channel);
    member.lease = etcd::Lease::NewStub(channel);
    member.watch = etcd::Watch::NewStub(channel);
    client->members_.push_back(std::move(member));
  }
  return client;
}

Status EtcdClient::Ended(const grpc::Status& status, const Member& member) {
  if (status.ok()) return Status::Ok();
  {
    MutexLock lock(mutex_);
    if (stopped_) return Stopped();
  }
  Status result = Definite(status, fmt::format("{}: {}", member.name, status.error_message()));
  // Another thread may have moved on already; then this moves once more, which does no harm.
  if (result.code() == ErrorCode::kUnavailable) next_.fetch_add(1);
  return result;
}

Result<etcd::RangeResponse> EtcdClient::Range(const etcd::RangeRequest& request, Timeout timeout) {
  Call call(*this, timeout);
  if (!call.started()) return Fail(Stopped());
  Member& member = current();
  etcd::RangeResponse response;
  HOLDFAST_RETURN_IF_ERROR(Ended(member.kv->Range(call.context(), request, &response), member));
  return response;
}

Result<etcd::TxnResponse> EtcdClient::Txn(const etcd::TxnRequest& request, Timeout timeout) {
  Call call(*this, timeout);
  if (!call.started()) return Fail(Stopped());
  Member& member = current();
  etcd::TxnResponse response;
  HOLDFAST_RETURN_IF_ERROR(Ended(member.kv->Txn(call.context(), request, &response), member));
  return response;
}

Result<etcd::LeaseGrantResponse> EtcdClient::Grant(const etcd::LeaseGrantRequest& request,
                                                   Timeout timeout) {
  Call call(*this, timeout);
  if (!call.started()) return Fail(Stopped());
  Member& member = current();
  etcd::LeaseGrantResponse response;
  HOLDFAST_RETURN_IF_ERROR(
      Ended(member.lease->LeaseGrant(call.context(), request, &response), member));
  if (!response.error().empty()) return Fail(UnavailableError(response.error()));
  return response;
}

Status EtcdClient::Revoke(int64_t lease, Timeout timeout) {
  Call call(*this, timeout);
  if (!call.started()) return Stopped();
  Member& member = current();
  etcd::LeaseRevokeRequest request;
  request.set_id(lease);
  etcd::LeaseRevokeResponse response;
  return Ended(member.lease->LeaseRevoke(call.context(), request, &response), member);
}

Status EtcdClient::KeepAlive(int64_t lease, Timeout timeout) {
  Call call(*this, timeout);
  if (!call.started()) return Stopped();
  Member& member = current();
  auto stream = member.lease->LeaseKeepAlive(call.context());
  etcd::LeaseKeepAliveRequest request;
  request.set_id(lease);
  etcd::LeaseKeepAliveResponse response;
  const bool answered = stream->Write(request) && stream->Read(&response);
  if (answered) {
    // The answer is complete; the end of the stream does not matter.
    call.context()->TryCancel();
    (void)stream->Finish();
    if (response.ttl() <= 0) return NotFoundError(member.name + ": the lease has ended");
    return Status::Ok();
  }
  Status status = Ended(stream->Finish(), member);
  return status.ok() ? UnavailableError(member.name + ": no answer to a keep-alive") : status;
}

Status EtcdClient::AwaitErased(const std::string& key, int64_t revision, Timeout timeout) {
  Call call(*this, timeout);
  if (!call.started()) return Stopped();
  Member& member = current();
  auto stream = member.watch->Watch(call.context());
  etcd::WatchRequest request;
  request.mutable_create_request()->set_key(key);
  request.mutable_create_request()->set_start_revision(revision);
  bool erased = false;
  std::string cancelled;
  etcd::WatchResponse response;
  bool going = stream->Write(request);
  while (going && !erased && cancelled.empty() && stream->Read(&response)) {
    for (const etcd::Event& event : response.events()) {
      erased = erased || event.type() == etcd::Event::DELETE;
    }
    if (response.canceled() || response.compact_revision() != 0) {
      cancelled = fmt::format("{}: the watch was cancelled: {}", member.name,
                              response.compact_revision() != 0 ? "its revision is compacted"
                                                               : response.cancel_reason());
    }
  }
  call.context()->TryCancel();
  const grpc::Status finished = stream->Finish();
  if (erased) return Status::Ok();
  if (!cancelled.empty()) return AbortedError(std::move(cancelled));
  if (finished.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    return DeadlineExceededError("no change");
  }
  Status status = Ended(finished, member);
  // The member measures the time of the call, too, and may end the call first.
  if (finished.error_code() == grpc::StatusCode::CANCELLED) {
    return AbortedError(member.name + ": the call of the watch was cancelled");
  }
  return status.ok() ? UnavailableError(member.name + ": the watch ended") : status;
}

void EtcdClient::Shutdown() {
  MutexLock lock(mutex_);
  stopped_ = true;
  for (grpc::ClientContext* context : calls_) context->TryCancel();
}

}  // namespace holdfast::coord
