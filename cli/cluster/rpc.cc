#include "cli/cluster/rpc.h"

#include <fmt/format.h>

#include "base/endpoint.h"
#include "coordinator/api/convert.h"

namespace holdfast::cli {

coord::TlsFiles TlsOf(const GlobalOptions& options) {
  coord::TlsFiles tls{options.tls_ca, options.tls_cert, options.tls_key};
  tls.insecure_loopback = options.insecure_loopback;
  return tls;
}

Status CheckMayCall(const std::string& endpoints, const GlobalOptions& options) {
  const coord::TlsFiles tls = TlsOf(options);
  HOLDFAST_ASSIGN_OR_RETURN(const auto list, ParseEndpointList(endpoints));
  for (const Endpoint& one : list) {
    const bool plain_loopback =
        !tls.configured() && one.kind == Endpoint::Kind::kTcp && one.IsLocal();
    if (!plain_loopback || tls.insecure_loopback) continue;
    return InvalidArgumentError(fmt::format(
        "{} is a loopback address, and no TLS is configured: any user of this machine may listen "
        "there instead of the server. Use unix:/path, or set --tls-ca, --tls-cert and --tls-key, "
        "or --insecure-loopback (in cli.toml: insecure-loopback = true) on a machine without "
        "other users",
        one.ToString()));
  }
  return Status::Ok();
}

Result<std::shared_ptr<grpc::Channel>> OpenChannel(const std::string& endpoint,
                                                   const GlobalOptions& options) {
  HOLDFAST_ASSIGN_OR_RETURN(Endpoint parsed, ParseEndpoint(endpoint));
  HOLDFAST_RETURN_IF_ERROR(CheckMayCall(endpoint, options));
  // Seals grow with their shards, so agents need the larger message limit, too.
  return coord::MakeChannel(parsed, TlsOf(options));
}

Status FromTransport(const grpc::Status& status, const std::string& peer, int64_t timeout_ms,
                     const std::string& hint) {
  if (status.error_details().empty()) {
    if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
      return UnavailableError(
          fmt::format("cannot reach {}: {}; {}", peer, status.error_message(), hint));
    }
    if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
      return DeadlineExceededError(fmt::format(
          "{} did not answer within {} s: it may be stopped or overloaded, or --timeout "
          "is too short",
          peer, static_cast<double>(timeout_ms) / 1000));
    }
  }
  return coord::FromGrpc(status, peer);
}

bool IsSlowHandshake(const grpc::Status& status) {
  // Only the text distinguishes this error from a refused connection.
  return status.error_code() == grpc::StatusCode::UNAVAILABLE && status.error_details().empty() &&
         status.error_message().find("timed out") != std::string::npos;
}

SilenceGuard::SilenceGuard(grpc::ClientContext& call, int64_t timeout_ms, const Clock& clock)
    : call_(call),
      timeout_(std::chrono::milliseconds(timeout_ms)),
      clock_(clock),
      until_(clock.Now() + timeout_),
      thread_([this] { Watch(); }) {}

SilenceGuard::~SilenceGuard() {
  {
    MutexLock lock(mutex_);
    stopped_ = true;
  }
  changed_.NotifyAll();
  thread_.join();
}

void SilenceGuard::Touch() {
  MutexLock lock(mutex_);
  until_ = clock_.Now() + timeout_;
  paused_ = false;
}

void SilenceGuard::Pause() {
  MutexLock lock(mutex_);
  paused_ = true;
}

bool SilenceGuard::expired() {
  MutexLock lock(mutex_);
  return expired_;
}

void SilenceGuard::Watch() {
  MutexLock lock(mutex_);
  while (!stopped_ && !expired_) {
    auto left = until_ - clock_.Now();
    if (paused_) left = timeout_;
    if (left.count() > 0) {
      changed_.WaitFor(mutex_, left);
      continue;
    }
    expired_ = true;
    call_.TryCancel();
  }
}

}  // namespace holdfast::cli
