// Feeds bytes to what reads the certificate of a caller, a peer or a server that is not known yet.

#include <openssl/x509.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "agent/peers/peer_name.h"
#include "base/certificates/certificate.h"
#include "base/certificates/revoked_names.h"
#include "tests/fuzz/require.h"

namespace holdfast::certificates {
namespace {

/// Checks that all readers of a name agree on it.
void ReadName(const std::string& uri) {
  const auto parts = SplitSpiffeUri(uri);
  RevokedNames revoked;
  if (!parts) {
    revoked.Replace({{{"agent", "n0"}, 10}});
    FUZZ_REQUIRE(revoked.RevokedAt(uri) == 0);
    return;
  }
  FUZZ_REQUIRE(SpiffeUri(parts->cluster, parts->role, parts->name) == uri);
  // A revocation is of a role and a name: a certificate that names both is refused.
  revoked.Replace({{{std::string(parts->role), std::string(parts->name)}, 10}});
  FUZZ_REQUIRE(revoked.RevokedAt(uri) == 10);
  FUZZ_REQUIRE(revoked.Refuses(uri, 10) && !revoked.Refuses(uri, 11));
  const std::string cluster(parts->cluster);
  const std::string name(parts->name);
  const bool is_agent = parts->role == "agent";
  FUZZ_REQUIRE(agent::CheckPeerName({{uri}, 11}, cluster, name, &revoked).ok() == is_agent);
  FUZZ_REQUIRE(!agent::CheckPeerName({{uri}, 10}, cluster, name, &revoked).ok());
  FUZZ_REQUIRE(!agent::CheckPeerName({{uri, uri}, 11}, cluster, name, &revoked).ok());
  FUZZ_REQUIRE(!agent::CheckPeerName({{uri}, 11}, cluster, name + "x", &revoked).ok());
}

void ReadCertificate(const Certificate& certificate) {
  for (const std::string& uri : certificate.SpiffeUris()) {
    FUZZ_REQUIRE(uri.starts_with(kSpiffe));
    ReadName(uri);
  }
  for (const std::string& host : certificate.Hosts()) static_cast<void>(host.size());
  // Unless it signed itself, a certificate is of no authority that the client knows.
  const Pin pin{certificate.Hash(), "n0"};
  const int64_t now = certificate.not_before() + 1;
  FUZZ_REQUIRE(!CheckPinnedChain(certificate.ToPem(), pin, now));
  FUZZ_REQUIRE(!CheckPinnedChain(certificate.ToPem(), {std::string(64, '0'), "n0"}, now));
  static_cast<void>(CheckValidity(certificate, "the certificate", now).ok());
}
}  // namespace
}  // namespace holdfast::certificates

/// Reads the input as a name, as certificates in PEM form, and as one in DER form, which has no
/// checksum.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace holdfast::certificates;
  const std::string text(reinterpret_cast<const char*>(data), size);
  ReadName(text);
  const auto all = Certificate::AllFromPem(text);
  if (all) {
    for (const Certificate& one : *all) ReadCertificate(one);
    static_cast<void>(CheckPinnedChain(text, {all->back().Hash(), "n0"}, 1).has_value());
  } else {
    FUZZ_REQUIRE(!all.error().message().empty());
  }
  const unsigned char* at = data;
  if (X509* der = d2i_X509(nullptr, &at, static_cast<long>(size))) {
    ReadCertificate(Certificate(CertificateHandle(der)));
  }
  return 0;
}
