#include "cli/join/certificate_client.h"

namespace holdfast::cli {
namespace {
using coordinator::Certificates;
}  // namespace

Result<CertificateClient> CertificateClient::Open(const GlobalOptions& options,
                                                  const Clock& clock) {
  HOLDFAST_ASSIGN_OR_RETURN(
      LeaderCalls calls,
      LeaderCalls::Open(options, "is holdfast-coordinator running, and is your certificate valid?",
                        clock));
  return CertificateClient(std::move(calls));
}

Result<coordinator::CreateTokenReply> CertificateClient::CreateToken(const std::string& role,
                                                                     const std::string& name,
                                                                     int64_t ttl_s) {
  coordinator::CreateTokenRequest request;
  request.set_role(role);
  request.set_name(name);
  request.set_ttl_s(ttl_s);
  return calls_.Call(&Certificates::Stub::CreateToken, request);
}

Result<coordinator::RenewReply> CertificateClient::Renew(const std::string& request_pem) {
  coordinator::RenewRequest request;
  request.set_request_pem(request_pem);
  return calls_.Call(&Certificates::Stub::Renew, request);
}

Status CertificateClient::Revoke(const std::string& role, const std::string& name,
                                 const std::string& why) {
  coordinator::RevokeRequest request;
  request.set_role(role);
  request.set_name(name);
  request.set_why(why);
  auto reply = calls_.Call(&Certificates::Stub::Revoke, request);
  return reply ? Status::Ok() : reply.error();
}

Result<coordinator::ListIdentitiesReply> CertificateClient::ListIdentities() {
  return calls_.Call(&Certificates::Stub::ListIdentities, coordinator::ListIdentitiesRequest());
}

}  // namespace holdfast::cli
