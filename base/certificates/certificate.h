#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/certificates/openssl.h"
#include "base/status.h"

namespace holdfast::certificates {

/// The first part of every name in a certificate.
inline constexpr std::string_view kSpiffe = "spiffe://";
/// The role of a coordinator's certificate. It gives no rights to a caller.
inline constexpr std::string_view kCoordinatorRole = "coordinator";

/// Returns spiffe://CLUSTER/ROLE/NAME.
std::string SpiffeUri(std::string_view cluster, std::string_view role, std::string_view name);

/// The parts of a name in a certificate, each a part of the text of the name. They are as the
/// issuer wrote them: `name` may contain any character.
struct SpiffeParts {
  std::string_view cluster;
  std::string_view role;
  std::string_view name;
};
/// Splits a name; nothing if it is not of the form spiffe://CLUSTER/ROLE/NAME.
std::optional<SpiffeParts> SplitSpiffeUri(std::string_view uri);

/// A certificate. Thread-compatible.
class Certificate {
 public:
  explicit Certificate(CertificateHandle certificate) : certificate_(std::move(certificate)) {}
  /// Reads the first certificate of a PEM text; other blocks are skipped. InvalidArgument: none.
  static Result<Certificate> FromPem(std::string_view pem);
  /// Reads all certificates of a PEM text; at least one.
  static Result<std::vector<Certificate>> AllFromPem(std::string_view pem);

  std::string ToPem() const;
  /// Returns the names that begin with spiffe://.
  std::vector<std::string> SpiffeUris() const;
  /// Returns the host names and addresses in the certificate.
  std::vector<std::string> Hosts() const;
  /// The validity, in seconds since 1970.
  int64_t not_before() const;
  int64_t not_after() const;
  /// Returns the SHA-256 of the public key, as hex.
  std::string Hash() const;
  /// Returns whether the key of `issuer` signed this certificate.
  bool SignedBy(const Certificate& issuer) const;
  x509_st* get() const { return certificate_.get(); }

 private:
  CertificateHandle certificate_;
};

/// What a client knows of a cluster that it joins.
struct Pin {
  std::string ca_hash;  // SHA-256 of the authority's public key, as hex
  std::string host;     // the host name or address that the client connects to
};

/// Checks the chain that a server presents: it contains the authority of `pin`, which signs the
/// server's certificate, for the host and the role coordinator. Returns the cluster.
/// PermissionDenied: the message names what differs. `now` is in seconds since 1970.
Result<std::string> CheckPinnedChain(std::string_view chain_pem, const Pin& pin, int64_t now);

/// Checks that `now` is within the validity of a certificate. FailedPrecondition; a certificate
/// that is not valid yet names the difference of the clocks.
Status CheckValidity(const Certificate& certificate, std::string_view what, int64_t now);

}  // namespace holdfast::certificates
