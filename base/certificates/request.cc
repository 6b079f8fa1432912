#include "base/certificates/request.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

namespace holdfast::certificates {
namespace {
constexpr size_t kRequestBytesMax = 16 << 10;
constexpr int kSecurityBitsMin = 112;  // P-256 has 128, RSA with 2,048 bits has 112
}  // namespace

Result<Request> Request::Make(const PrivateKey& key) {
  ERR_clear_error();
  RequestHandle request(X509_REQ_new());
  if (request == nullptr || X509_REQ_set_version(request.get(), X509_REQ_VERSION_1) != 1 ||
      X509_REQ_set_pubkey(request.get(), key.get()) != 1 ||
      X509_REQ_sign(request.get(), key.get(), EVP_sha256()) <= 0) {
    return Fail(InternalError("cannot make a certificate request: " + TakeErrorText()));
  }
  return Request(std::move(request));
}

Result<Request> Request::FromPem(std::string_view pem) {
  if (pem.size() > kRequestBytesMax) {
    return Fail(InvalidArgumentError("a certificate request of over 16 KiB"));
  }
  ERR_clear_error();
  const BioHandle bio = ReadFrom(pem);
  RequestHandle request(PEM_read_bio_X509_REQ(bio.get(), nullptr, nullptr, nullptr));
  if (request == nullptr) {
    return Fail(InvalidArgumentError("not a certificate request: " + TakeErrorText()));
  }
  EVP_PKEY* key = X509_REQ_get0_pubkey(request.get());
  if (key == nullptr || EVP_PKEY_get_security_bits(key) < kSecurityBitsMin) {
    return Fail(InvalidArgumentError("the key of the certificate request is too weak"));
  }
  if (X509_REQ_verify(request.get(), key) != 1) {
    ERR_clear_error();
    return Fail(InvalidArgumentError("the certificate request is not signed by its own key"));
  }
  return Request(std::move(request));
}

std::string Request::ToPem() const {
  const BioHandle bio = MemoryBio();
  PEM_write_bio_X509_REQ(bio.get(), request_.get());
  return TakeText(bio.get());
}

evp_pkey_st* Request::key() const { return X509_REQ_get0_pubkey(request_.get()); }

std::string Request::Hash() const { return KeyHash(key()); }

}  // namespace holdfast::certificates
