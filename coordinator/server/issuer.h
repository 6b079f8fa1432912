#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/certificates/authority.h"
#include "base/certificates/request.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "coordinator/api/tls_credentials.h"
#include "coordinator/state/events.h"

namespace holdfast::coord {

struct IssuerOptions {
  std::string cluster;
  TlsFiles tls;        // tls.ca: all authorities that the cluster accepts
  std::string ca_key;  // empty: this coordinator issues no certificates
  int64_t validity_s = 86'400;
};

/// Issues the cluster's certificates with the key of its authority, and renews the coordinator's
/// own one. Reads the files of the authority again when they have changed, so that the key and the
/// accepted authorities can be replaced while the coordinator runs. Thread-safe.
class Issuer {
 public:
  /// InvalidArgument: the key cannot be read or is not of one of the authorities. `clock` outlives
  /// the issuer.
  static Result<std::unique_ptr<Issuer>> Open(IssuerOptions options, const Clock& clock);

  /// Checks that the files can be read and fit each other.
  static Status Check(const IssuerOptions& options);

  /// Whether this coordinator has the key of an authority.
  bool enabled() const { return !options_.ca_key.empty(); }
  int64_t validity_s() const { return options_.validity_s; }
  /// Returns the SHA-256 of the issuing authority's public key; empty if not enabled.
  std::string issuer_hash() const;
  /// Returns all authorities that the cluster accepts, as PEM; the issuing one is the first.
  std::string bundle() const;
  /// Returns the hashes of all authorities that the cluster accepts, in the order of bundle().
  std::vector<std::string> hashes() const;
  /// Issues a certificate for the key of `request`; returns PEM.
  Result<std::string> Issue(const certificates::Request& request, const IssuedIdentity& identity,
                            const std::vector<std::string>& hosts) const;

  /// Reads changed files, and renews the coordinator's certificate when it is due or of another
  /// authority. Errors are logged, and the files before stay in use.
  void Refresh();

 private:
  struct Authorities {
    std::unique_ptr<certificates::Authority> issuing;  // null: not enabled
    std::vector<certificates::Certificate> accepted;
    std::string bundle;
  };

  Issuer(IssuerOptions options, const Clock& clock) : options_(std::move(options)), clock_(clock) {}
  static Result<Authorities> Read(const IssuerOptions& options);
  Status RenewOwn();
  void LogOnce(const Status& status);
  int64_t NowSeconds() const;

  const IssuerOptions options_;
  const Clock& clock_;
  mutable Mutex mutex_;
  Authorities authorities_ HOLDFAST_GUARDED_BY(mutex_);
  std::string last_error_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast::coord
