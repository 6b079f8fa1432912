#include "cli/join/certificate_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "base/clock.h"
#include "cli/cluster/rpc.h"
#include "cli/core/interrupt.h"
#include "coordinator/api/convert.h"

namespace holdfast::cli {
namespace {
using coordinator::Certificates;
}  // namespace

Result<CertificateClient> CertificateClient::Open(const GlobalOptions& options,
                                                  const Clock& clock) {
  HOLDFAST_RETURN_IF_ERROR(CheckMayCall(options.endpoint, options));
  HOLDFAST_ASSIGN_OR_RETURN(auto coordinators,
                            coord::LeaderChannel::Make(options.endpoint, TlsOf(options)));
  return CertificateClient(std::move(coordinators), "the coordinator at " + options.endpoint,
                           options.timeout_ms, clock);
}

template <typename Request, typename Reply>
Result<Reply> CertificateClient::Call(Method<Request, Reply> method, const Request& request) {
  const Clock& clock = *clock_;
  const Clock::TimePoint until = clock.Now() + std::chrono::milliseconds(timeout_ms_);
  for (size_t tries = 1;; ++tries) {
    const size_t asked = coordinators_->current();
    Reply reply;
    grpc::ClientContext context;
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(until - clock.Now()).count();
    SilenceGuard guard(context, std::max<int64_t>(left, 1), clock);
    OnInterrupt cancel([&context] { context.TryCancel(); });
    Certificates::Stub stub(coordinators_->channel(asked));
    grpc::Status finished = (stub.*method)(&context, request, &reply);
    HOLDFAST_RETURN_IF_ERROR(Interrupt::Check());
    if (guard.expired()) finished = {grpc::StatusCode::DEADLINE_EXCEEDED, "silent"};
    if (finished.ok()) {
      HOLDFAST_RETURN_IF_ERROR(coord::FromProto(reply.outcome()));
      return reply;
    }
    const bool others = finished.error_code() == grpc::StatusCode::UNAVAILABLE &&
                        coordinators_->size() > 1 && clock.Now() < until;
    if (!others || (tries > 2 * coordinators_->size() && !coord::StandsBy(context))) {
      return Fail(FromTransport(finished, peer_, timeout_ms_,
                                "is holdfast-coordinator running, and is your certificate valid?"));
    }
    coordinators_->Follow(asked, context);
    HOLDFAST_RETURN_IF_ERROR(Interrupt::SleepFor(kRetryPauseMs));
  }
}

Result<coordinator::CreateTokenReply> CertificateClient::CreateToken(const std::string& role,
                                                                     const std::string& name,
                                                                     int64_t ttl_s) {
  coordinator::CreateTokenRequest request;
  request.set_role(role);
  request.set_name(name);
  request.set_ttl_s(ttl_s);
  return Call(&Certificates::Stub::CreateToken, request);
}

Result<coordinator::RenewReply> CertificateClient::Renew(const std::string& request_pem) {
  coordinator::RenewRequest request;
  request.set_request_pem(request_pem);
  return Call(&Certificates::Stub::Renew, request);
}

Status CertificateClient::Revoke(const std::string& role, const std::string& name,
                                 const std::string& why) {
  coordinator::RevokeRequest request;
  request.set_role(role);
  request.set_name(name);
  request.set_why(why);
  auto reply = Call(&Certificates::Stub::Revoke, request);
  return reply ? Status::Ok() : reply.error();
}

Result<coordinator::ListIdentitiesReply> CertificateClient::ListIdentities() {
  return Call(&Certificates::Stub::ListIdentities, coordinator::ListIdentitiesRequest());
}

}  // namespace holdfast::cli
