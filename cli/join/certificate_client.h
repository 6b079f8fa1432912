#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "cli/core/options.h"
#include "coordinator/api/certificates.grpc.pb.h"
#include "coordinator/api/leader_channel.h"

namespace holdfast::cli {

/// Calls the service Certificates of the coordinator that leads. Every error of the transport and
/// every outcome that is not OK becomes a Status. Thread-compatible.
class CertificateClient {
 public:
  /// `clock` outlives the client.
  static Result<CertificateClient> Open(const GlobalOptions& options, const Clock& clock);

  Result<coordinator::CreateTokenReply> CreateToken(const std::string& role,
                                                    const std::string& name, int64_t ttl_s);
  Result<coordinator::RenewReply> Renew(const std::string& request_pem);
  Status Revoke(const std::string& role, const std::string& name, const std::string& why);
  Result<coordinator::ListIdentitiesReply> ListIdentities();

 private:
  CertificateClient(std::unique_ptr<coord::LeaderChannel> coordinators, std::string peer,
                    int64_t timeout_ms, const Clock& clock)
      : coordinators_(std::move(coordinators)),
        peer_(std::move(peer)),
        timeout_ms_(timeout_ms),
        clock_(&clock) {}

  template <typename Request, typename Reply>
  using Method = grpc::Status (coordinator::Certificates::Stub::*)(grpc::ClientContext*,
                                                                   const Request&, Reply*);
  template <typename Request, typename Reply>
  Result<Reply> Call(Method<Request, Reply> method, const Request& request);

  std::unique_ptr<coord::LeaderChannel> coordinators_;
  std::string peer_;
  int64_t timeout_ms_;
  const Clock* clock_;
};

}  // namespace holdfast::cli
