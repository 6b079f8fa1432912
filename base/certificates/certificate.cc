#include "base/certificates/certificate.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>

#include <array>
#include <ctime>

#include "base/clock.h"

namespace holdfast::certificates {
namespace {
constexpr size_t kChainMax = 8;
constexpr int64_t kNanosPerSecond = 1'000'000'000;

int64_t SecondsOf(const ASN1_TIME* time) {
  std::tm parts{};
  return ASN1_TIME_to_tm(time, &parts) == 1 ? ::timegm(&parts) : 0;
}

std::string DateOf(int64_t seconds) { return FormatUtc(seconds * kNanosPerSecond); }

NamesHandle NamesOf(const X509* certificate) {
  return NamesHandle(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
}

std::string TextOf(const ASN1_STRING* text) {
  const unsigned char* data = ASN1_STRING_get0_data(text);
  return {reinterpret_cast<const char*>(data), static_cast<size_t>(ASN1_STRING_length(text))};
}

std::string AddressOf(const ASN1_STRING* address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const int family = ASN1_STRING_length(address) == 4 ? AF_INET : AF_INET6;
  if (family == AF_INET6 && ASN1_STRING_length(address) != 16) return "";
  const unsigned char* data = ASN1_STRING_get0_data(address);
  return ::inet_ntop(family, data, text.data(), text.size()) == nullptr ? "" : text.data();
}

struct FreeStore {
  void operator()(X509_STORE* store) const { X509_STORE_free(store); }
};
struct FreeVerifier {
  void operator()(X509_STORE_CTX* verifier) const { X509_STORE_CTX_free(verifier); }
};

/// Verifies that `authority`, and nothing else, vouches for `leaf` as a TLS server for `host`.
/// Returns OpenSSL's number of the error; X509_V_OK: it does.
int VerifyWith(const Certificate& authority, const Certificate& leaf, const std::string& host,
               int64_t now) {
  const std::unique_ptr<X509_STORE, FreeStore> store(X509_STORE_new());
  const std::unique_ptr<X509_STORE_CTX, FreeVerifier> verifier(X509_STORE_CTX_new());
  if (store == nullptr || verifier == nullptr ||
      X509_STORE_add_cert(store.get(), authority.get()) != 1 ||
      X509_STORE_CTX_init(verifier.get(), store.get(), leaf.get(), nullptr) != 1) {
    return X509_V_ERR_OUT_OF_MEM;
  }
  X509_VERIFY_PARAM* rules = X509_STORE_CTX_get0_param(verifier.get());
  X509_VERIFY_PARAM_set_time(rules, now);
  X509_VERIFY_PARAM_set_purpose(rules, X509_PURPOSE_SSL_SERVER);
  // The pinned authority may itself be signed by another one, which is not known here.
  X509_VERIFY_PARAM_set_flags(rules, X509_V_FLAG_PARTIAL_CHAIN);
  if (X509_VERIFY_PARAM_set1_ip_asc(rules, host.c_str()) != 1) {
    ERR_clear_error();
    if (X509_VERIFY_PARAM_set1_host(rules, host.c_str(), host.size()) != 1) {
      return X509_V_ERR_INVALID_CALL;
    }
  }
  if (X509_verify_cert(verifier.get()) == 1) return X509_V_OK;
  const int error = X509_STORE_CTX_get_error(verifier.get());
  return error == X509_V_OK ? X509_V_ERR_UNSPECIFIED : error;
}
}  // namespace

std::string SpiffeUri(std::string_view cluster, std::string_view role, std::string_view name) {
  return fmt::format("{}{}/{}/{}", kSpiffe, cluster, role, name);
}

std::optional<SpiffeParts> SplitSpiffeUri(std::string_view uri) {
  if (!uri.starts_with(kSpiffe)) return std::nullopt;
  uri.remove_prefix(kSpiffe.size());
  const size_t role = uri.find('/');
  const size_t name = role == std::string_view::npos ? role : uri.find('/', role + 1);
  if (name == std::string_view::npos) return std::nullopt;
  return SpiffeParts{uri.substr(0, role), uri.substr(role + 1, name - role - 1),
                     uri.substr(name + 1)};
}

Result<Certificate> Certificate::FromPem(std::string_view pem) {
  HOLDFAST_ASSIGN_OR_RETURN(auto all, AllFromPem(pem));
  return std::move(all.front());
}

Result<std::vector<Certificate>> Certificate::AllFromPem(std::string_view pem) {
  if (pem.size() > kPemBytesMax) return Fail(InvalidArgumentError("a PEM file of over 1 MiB"));
  ERR_clear_error();
  const BioHandle bio = ReadFrom(pem);
  std::vector<Certificate> all;
  while (X509* one = PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)) {
    all.emplace_back(CertificateHandle(one));
  }
  const std::string why = TakeErrorText();
  if (all.empty()) return Fail(InvalidArgumentError("no certificate in PEM form: " + why));
  return all;
}

std::string Certificate::ToPem() const {
  const BioHandle bio = MemoryBio();
  PEM_write_bio_X509(bio.get(), certificate_.get());
  return TakeText(bio.get());
}

std::vector<std::string> Certificate::SpiffeUris() const {
  std::vector<std::string> uris;
  const NamesHandle names = NamesOf(certificate_.get());
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_URI) continue;
    std::string uri = TextOf(name->d.uniformResourceIdentifier);
    if (uri.starts_with(kSpiffe)) uris.push_back(std::move(uri));
  }
  return uris;
}

std::vector<std::string> Certificate::Hosts() const {
  std::vector<std::string> hosts;
  const NamesHandle names = NamesOf(certificate_.get());
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type == GEN_DNS) hosts.push_back(TextOf(name->d.dNSName));
    if (name->type == GEN_IPADD) hosts.push_back(AddressOf(name->d.iPAddress));
  }
  return hosts;
}

int64_t Certificate::not_before() const {
  return SecondsOf(X509_get0_notBefore(certificate_.get()));
}
int64_t Certificate::not_after() const { return SecondsOf(X509_get0_notAfter(certificate_.get())); }

std::string Certificate::Hash() const { return KeyHash(X509_get0_pubkey(certificate_.get())); }

bool Certificate::SignedBy(const Certificate& issuer) const {
  const bool signed_by =
      X509_verify(certificate_.get(), X509_get0_pubkey(issuer.certificate_.get())) == 1;
  ERR_clear_error();
  return signed_by;
}

Status CheckValidity(const Certificate& certificate, std::string_view what, int64_t now) {
  if (now < certificate.not_before()) {
    return FailedPreconditionError(fmt::format(
        "{} is valid from {}, and this machine's clock has {}: the clocks of the machines differ "
        "(clock skew); set the clock (NTP) and try again",
        what, DateOf(certificate.not_before()), DateOf(now)));
  }
  if (now > certificate.not_after()) {
    return FailedPreconditionError(fmt::format(
        "{} ended at {}, and this machine's clock has {}: join again with a new token, or set the "
        "clock if it is wrong",
        what, DateOf(certificate.not_after()), DateOf(now)));
  }
  return Status::Ok();
}

Result<std::string> CheckPinnedChain(std::string_view chain_pem, const Pin& pin, int64_t now) {
  auto chain = Certificate::AllFromPem(chain_pem);
  if (!chain) return Fail(PermissionDeniedError("the server presents no certificate"));
  const Certificate* authority = nullptr;
  for (size_t i = 0; i < chain->size() && i < kChainMax; ++i) {
    if ((*chain)[i].Hash() == pin.ca_hash) authority = &(*chain)[i];
  }
  const Certificate& leaf = chain->front();
  if (authority == nullptr) {
    return Fail(PermissionDeniedError(fmt::format(
        "wrong CA: the server's certificate is not of the authority that the token names ({}…). "
        "The token is of another cluster, or another server answers in place of the coordinator. "
        "Nothing of the token was sent",
        pin.ca_hash.substr(0, 16))));
  }
  if (authority == &leaf) {
    return Fail(PermissionDeniedError("the server uses the authority's own certificate"));
  }
  HOLDFAST_RETURN_IF_ERROR(CheckValidity(leaf, "the coordinator's certificate", now));
  const int verified = VerifyWith(*authority, leaf, pin.host, now);
  if (verified == X509_V_ERR_HOSTNAME_MISMATCH || verified == X509_V_ERR_IP_ADDRESS_MISMATCH) {
    std::string hosts;
    for (const std::string& host : leaf.Hosts()) hosts += (hosts.empty() ? "" : ", ") + host;
    return Fail(PermissionDeniedError(
        fmt::format("the coordinator's certificate is not for '{}', but for {}; use one of these, "
                    "or make the cluster with --host {}",
                    pin.host, hosts, pin.host)));
  }
  if (verified != X509_V_OK) {
    return Fail(PermissionDeniedError(fmt::format("the server's certificate is not accepted: {}",
                                                  X509_verify_cert_error_string(verified))));
  }
  for (const std::string& uri : leaf.SpiffeUris()) {
    const auto parts = SplitSpiffeUri(uri);
    if (parts && parts->role == kCoordinatorRole) return std::string(parts->cluster);
  }
  return Fail(PermissionDeniedError(
      "the server's certificate is of this cluster, but not of a coordinator. Nothing of the token "
      "was sent"));
}

}  // namespace holdfast::certificates
