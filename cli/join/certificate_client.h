#pragma once

#include <string>
#include <utility>

#include "base/clock.h"
#include "cli/cluster/leader_calls.h"
#include "cli/core/options.h"
#include "coordinator/api/certificates.grpc.pb.h"

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
  explicit CertificateClient(LeaderCalls calls) : calls_(std::move(calls)) {}

  LeaderCalls calls_;
};

}  // namespace holdfast::cli
