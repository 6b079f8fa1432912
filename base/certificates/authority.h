#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/certificates/certificate.h"
#include "base/certificates/private_key.h"
#include "base/status.h"

namespace holdfast::certificates {

/// How far a certificate begins in the past, for machines whose clocks are behind.
inline constexpr int64_t kBackdateSeconds = 300;

/// What a certificate states. Times are in seconds since 1970.
struct Issue {
  std::string uri;                 // spiffe://CLUSTER/ROLE/NAME
  std::vector<std::string> hosts;  // host names and IP addresses
  int64_t not_before = 0;
  int64_t not_after = 0;
};

/// An authority: signs certificates with its key. Thread-compatible.
class Authority {
 public:
  /// Makes an authority with a new key.
  static Result<Authority> Create(std::string_view cluster, int64_t now);
  /// Uses the key in `key_pem` and its certificate among those of `bundle_pem`. InvalidArgument: no
  /// certificate of the bundle has this key.
  static Result<Authority> Load(std::string_view bundle_pem, std::string_view key_pem);

  const Certificate& certificate() const { return certificate_; }
  /// Returns the key; for the file of the authority only.
  const PrivateKey& key() const { return key_; }
  /// Issues a certificate for a public key. InvalidArgument: a host that is neither a name nor an
  /// address.
  Result<Certificate> Sign(evp_pkey_st* public_key, const Issue& issue) const;

 private:
  Authority(Certificate certificate, PrivateKey key)
      : certificate_(std::move(certificate)), key_(std::move(key)) {}

  Certificate certificate_;
  PrivateKey key_;
};

/// Checks a host name or an IP address. `what` starts the message.
Status ValidateHost(std::string_view what, std::string_view host);

}  // namespace holdfast::certificates
