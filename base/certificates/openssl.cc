#include "base/certificates/openssl.h"

#include <fmt/format.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/sha.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <array>

namespace holdfast::certificates {

void FreeKey::operator()(evp_pkey_st* key) const { EVP_PKEY_free(key); }
void FreeCertificate::operator()(x509_st* certificate) const { X509_free(certificate); }
void FreeRequest::operator()(X509_req_st* request) const { X509_REQ_free(request); }
void FreeNames::operator()(stack_st_GENERAL_NAME* names) const { GENERAL_NAMES_free(names); }
void FreeBio::operator()(bio_st* bio) const { BIO_free_all(bio); }

BioHandle ReadFrom(std::string_view text) {
  return BioHandle(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

BioHandle MemoryBio() { return BioHandle(BIO_new(BIO_s_mem())); }

std::string TakeText(bio_st* bio) {
  char* data = nullptr;
  const long bytes = BIO_get_mem_data(bio, &data);
  return bytes > 0 ? std::string(data, static_cast<size_t>(bytes)) : std::string();
}

std::string TakeErrorText() {
  const unsigned long error = ERR_get_error();
  ERR_clear_error();
  if (error == 0) return "no reason given";
  const char* reason = ERR_reason_error_string(error);
  return reason != nullptr ? reason : fmt::format("error {:#x}", error);
}

std::string KeyHash(evp_pkey_st* key) {
  unsigned char* der = nullptr;
  const int bytes = i2d_PUBKEY(key, &der);
  if (bytes <= 0) return "";
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest{};
  SHA256(der, static_cast<size_t>(bytes), digest.data());
  OPENSSL_free(der);
  std::string text;
  for (const unsigned char byte : digest) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace holdfast::certificates
