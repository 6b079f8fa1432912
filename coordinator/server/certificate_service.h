#pragma once

#include <string>

#include "base/clock.h"
#include "coordinator/api/certificates.grpc.pb.h"
#include "coordinator/server/applier.h"
#include "coordinator/server/issuer.h"
#include "coordinator/server/recorded_calls.h"
#include "coordinator/server/trust_feed.h"

namespace holdfast::coord {

/// Tokens, renewals and revocations, for callers with a certificate. It keeps no state.
class CertificateService : public coordinator::Certificates::CallbackService {
 public:
  /// All outlive the service.
  CertificateService(Applier& applier, Issuer& issuer, TrustFeed& feed, const Clock& clock)
      : applier_(applier), issuer_(issuer), feed_(feed), clock_(clock), recorded_(applier) {}

  /// Records the calls that change the cluster in `auditor`, which outlives the service, and sets
  /// where machines join. Before the first call.
  void Begin(Auditor& auditor, std::string join_address) {
    recorded_.RecordIn(auditor);
    join_address_ = std::move(join_address);
  }

  grpc::ServerUnaryReactor* CreateToken(grpc::CallbackServerContext* context,
                                        const coordinator::CreateTokenRequest* request,
                                        coordinator::CreateTokenReply* reply) override;
  grpc::ServerUnaryReactor* Renew(grpc::CallbackServerContext* context,
                                  const coordinator::RenewRequest* request,
                                  coordinator::RenewReply* reply) override;
  grpc::ServerUnaryReactor* Revoke(grpc::CallbackServerContext* context,
                                   const coordinator::RevokeRequest* request,
                                   coordinator::RevokeReply* reply) override;
  grpc::ServerUnaryReactor* ListIdentities(grpc::CallbackServerContext* context,
                                           const coordinator::ListIdentitiesRequest* request,
                                           coordinator::ListIdentitiesReply* reply) override;
  grpc::ServerWriteReactor<coordinator::Trust>* WatchTrust(
      grpc::CallbackServerContext* context, const coordinator::WatchTrustRequest* request) override;

 private:
  Applier& applier_;
  Issuer& issuer_;
  TrustFeed& feed_;
  const Clock& clock_;
  RecordedCalls recorded_;
  std::string join_address_;
};

/// Joins with a token, for callers without a certificate. Threads: gRPC's.
class EnrollmentService : public coordinator::Enrollment::CallbackService {
 public:
  /// All outlive the service. `coordinators` is where agents and operators connect.
  EnrollmentService(std::string cluster, std::string coordinators, Applier& applier, Issuer& issuer,
                    const Clock& clock)
      : cluster_(std::move(cluster)),
        coordinators_(std::move(coordinators)),
        applier_(applier),
        issuer_(issuer),
        clock_(clock) {}

  grpc::ServerUnaryReactor* Enroll(grpc::CallbackServerContext* context,
                                   const coordinator::EnrollRequest* request,
                                   coordinator::EnrollReply* reply) override;

 private:
  const std::string cluster_;
  const std::string coordinators_;
  Applier& applier_;
  Issuer& issuer_;
  const Clock& clock_;
};

/// Starts the listener for joins, with TLS and without client certificates. It has no other method,
/// and little memory, so that its clients take nothing from the other listeners.
Result<std::unique_ptr<grpc::Server>> StartJoinServer(EnrollmentService& service,
                                                      Endpoint& endpoint, const TlsFiles& tls);

}  // namespace holdfast::coord
