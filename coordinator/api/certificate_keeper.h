#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "base/certificates/identity_file.h"
#include "base/certificates/revoked_names.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "coordinator/api/certificates.grpc.pb.h"
#include "coordinator/api/leader_channel.h"
#include "coordinator/api/trust_follower.h"

namespace holdfast::coord {

/// Keeps what an agent or a relay needs to check certificates: the revoked names and, with `renew`,
/// its own certificate and the accepted authorities. One thread renews the certificate after two
/// thirds of its time, or when another authority issues. Servers and channels read changed files
/// again. Thread-safe.
class CertificateKeeper {
 public:
  /// `revoked` and `clock` outlive the keeper. `coordinators` has separate connections.
  CertificateKeeper(const TlsFiles& tls, bool renew, std::unique_ptr<LeaderChannel> coordinators,
                    certificates::RevokedNames& revoked, Clock& clock);
  ~CertificateKeeper();

  /// InvalidArgument: `renew` is set, and tls.ca is the same file as tls.cert or tls.key.
  static Status Check(const TlsFiles& tls, bool renew);

  void Start();
  void Stop();

 private:
  /// Takes over the accepted authorities.
  void Accept(const coordinator::Trust& trust);
  void RenewLoop();
  /// Whether the certificate must be replaced now.
  Result<bool> Due() const;
  Status Renew();
  /// Returns false when stopping.
  bool Pause(Clock::Duration time);

  const TlsFiles tls_;
  const certificates::IdentityFiles files_;
  const bool renew_;
  const std::unique_ptr<LeaderChannel> coordinators_;
  Clock& clock_;
  TrustFollower follower_;

  mutable Mutex mutex_;
  CondVar wake_;
  bool stopping_ HOLDFAST_GUARDED_BY(mutex_) = false;
  std::string issuer_hash_ HOLDFAST_GUARDED_BY(mutex_);
  grpc::ClientContext* renewing_ HOLDFAST_GUARDED_BY(mutex_) = nullptr;
  std::thread renew_thread_;
};

}  // namespace holdfast::coord
