#include "base/certificates/authority.h"

#include <fmt/format.h>
#include <openssl/bn.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <algorithm>

namespace holdfast::certificates {
namespace {
constexpr int64_t kAuthoritySeconds = 3650LL * 86'400;
constexpr int kSerialBits = 127;
constexpr size_t kHostBytesMax = 253;

bool SetSerial(X509* certificate) {
  BIGNUM* number = BN_new();
  const bool set = number != nullptr &&
                   BN_rand(number, kSerialBits, BN_RAND_TOP_ONE, BN_RAND_BOTTOM_ANY) == 1 &&
                   BN_to_ASN1_INTEGER(number, X509_get_serialNumber(certificate)) != nullptr;
  BN_free(number);
  return set;
}

bool SetName(X509_NAME* name, const std::string& text) {
  return X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8,
                                    reinterpret_cast<const unsigned char*>(text.data()),
                                    static_cast<int>(text.size()), -1, 0) == 1;
}

/// Adds an extension whose value is a literal of this file.
bool AddExtension(X509* certificate, X509* issuer, int id, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, id, value);
  const bool added = extension != nullptr && X509_add_ext(certificate, extension, -1) == 1;
  X509_EXTENSION_free(extension);
  return added;
}

bool AddText(GENERAL_NAMES* names, int type, const std::string& text) {
  ASN1_IA5STRING* value = ASN1_IA5STRING_new();
  GENERAL_NAME* name = GENERAL_NAME_new();
  if (value == nullptr || name == nullptr ||
      ASN1_STRING_set(value, text.data(), static_cast<int>(text.size())) != 1) {
    ASN1_IA5STRING_free(value);
    GENERAL_NAME_free(name);
    return false;
  }
  GENERAL_NAME_set0_value(name, type, value);
  return sk_GENERAL_NAME_push(names, name) > 0;
}

bool AddAddress(GENERAL_NAMES* names, ASN1_OCTET_STRING* address) {
  GENERAL_NAME* name = GENERAL_NAME_new();
  if (name == nullptr) return false;
  GENERAL_NAME_set0_value(name, GEN_IPADD, address);
  return sk_GENERAL_NAME_push(names, name) > 0;
}

bool AddNames(X509* certificate, const Issue& issue) {
  const NamesHandle names(GENERAL_NAMES_new());
  if (names == nullptr || !AddText(names.get(), GEN_URI, issue.uri)) return false;
  for (const std::string& host : issue.hosts) {
    ASN1_OCTET_STRING* address = a2i_IPADDRESS(host.c_str());
    ERR_clear_error();
    const bool added =
        address != nullptr ? AddAddress(names.get(), address) : AddText(names.get(), GEN_DNS, host);
    if (!added) return false;
  }
  return X509_add1_ext_i2d(certificate, NID_subject_alt_name, names.get(), 0, X509V3_ADD_DEFAULT) ==
         1;
}

bool SetValidity(X509* certificate, int64_t not_before, int64_t not_after) {
  return ASN1_TIME_set(X509_getm_notBefore(certificate), not_before) != nullptr &&
         ASN1_TIME_set(X509_getm_notAfter(certificate), not_after) != nullptr;
}
}  // namespace

Status ValidateHost(std::string_view what, std::string_view host) {
  // OpenSSL would read an address only up to the first NUL.
  const bool has_nul = host.find('\0') != std::string_view::npos;
  ASN1_OCTET_STRING* address = has_nul ? nullptr : a2i_IPADDRESS(std::string(host).c_str());
  ERR_clear_error();
  if (address != nullptr) {
    ASN1_OCTET_STRING_free(address);
    return Status::Ok();
  }
  const auto good = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '.' || c == '_';
  };
  if (!host.empty() && host.size() <= kHostBytesMax && std::ranges::all_of(host, good)) {
    return Status::Ok();
  }
  return InvalidArgumentError(fmt::format("{}: '{}' is neither a host name nor an IP address", what,
                                          host.substr(0, kHostBytesMax)));
}

Result<Authority> Authority::Create(std::string_view cluster, int64_t now) {
  HOLDFAST_ASSIGN_OR_RETURN(PrivateKey key, PrivateKey::Generate());
  ERR_clear_error();
  CertificateHandle made(X509_new());
  X509* x = made.get();
  // The hash keeps the names of two authorities of one cluster apart.
  const std::string name = fmt::format("{} CA {}", cluster.substr(0, 40), key.Hash().substr(0, 8));
  if (x == nullptr || X509_set_version(x, X509_VERSION_3) != 1 || !SetSerial(x) ||
      !SetValidity(x, now - kBackdateSeconds, now + kAuthoritySeconds) ||
      !SetName(X509_get_subject_name(x), name) ||
      X509_set_issuer_name(x, X509_get_subject_name(x)) != 1 ||
      X509_set_pubkey(x, key.get()) != 1 ||
      !AddExtension(x, x, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") ||
      !AddExtension(x, x, NID_key_usage, "critical,keyCertSign,cRLSign") ||
      !AddExtension(x, x, NID_subject_key_identifier, "hash") ||
      X509_sign(x, key.get(), EVP_sha256()) <= 0) {
    return Fail(InternalError("cannot make an authority: " + TakeErrorText()));
  }
  return Authority(Certificate(std::move(made)), std::move(key));
}

Result<Authority> Authority::Load(std::string_view bundle_pem, std::string_view key_pem) {
  HOLDFAST_ASSIGN_OR_RETURN(PrivateKey key, PrivateKey::FromPem(key_pem));
  HOLDFAST_ASSIGN_OR_RETURN(auto bundle, Certificate::AllFromPem(bundle_pem));
  for (Certificate& one : bundle) {
    if (one.Hash() == key.Hash()) return Authority(std::move(one), std::move(key));
  }
  return Fail(InvalidArgumentError("the key belongs to none of the certificates of the CA file"));
}

Result<Certificate> Authority::Sign(evp_pkey_st* public_key, const Issue& issue) const {
  for (const std::string& host : issue.hosts) HOLDFAST_RETURN_IF_ERROR(ValidateHost("host", host));
  ERR_clear_error();
  CertificateHandle made(X509_new());
  X509* x = made.get();
  X509* issuer = certificate_.get();
  // The subject is for display only: its length is limited to 64 characters.
  const std::string subject = issue.uri.substr(issue.uri.rfind('/') + 1).substr(0, 64);
  if (x == nullptr || X509_set_version(x, X509_VERSION_3) != 1 || !SetSerial(x) ||
      !SetValidity(x, issue.not_before, issue.not_after) ||
      !SetName(X509_get_subject_name(x), subject) ||
      X509_set_issuer_name(x, X509_get_subject_name(issuer)) != 1 ||
      X509_set_pubkey(x, public_key) != 1 ||
      !AddExtension(x, issuer, NID_basic_constraints, "critical,CA:FALSE") ||
      !AddExtension(x, issuer, NID_key_usage, "critical,digitalSignature") ||
      !AddExtension(x, issuer, NID_ext_key_usage, "serverAuth,clientAuth") ||
      !AddExtension(x, issuer, NID_subject_key_identifier, "hash") ||
      !AddExtension(x, issuer, NID_authority_key_identifier, "keyid:always") ||
      !AddNames(x, issue) || X509_sign(x, key_.get(), EVP_sha256()) <= 0) {
    return Fail(InternalError("cannot issue a certificate: " + TakeErrorText()));
  }
  return Certificate(std::move(made));
}

}  // namespace holdfast::certificates
