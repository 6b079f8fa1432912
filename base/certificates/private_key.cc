#include "base/certificates/private_key.h"

#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>

namespace holdfast::certificates {
namespace {
/// Provides no password, because no operator is present to enter one.
int NoPassword(char* /*buffer*/, int /*bytes*/, int /*writing*/, void* /*pointer*/) { return 0; }
}  // namespace

Result<PrivateKey> PrivateKey::Generate() {
  KeyHandle key(EVP_EC_gen("P-256"));
  if (key == nullptr) return Fail(InternalError("cannot make a key: " + TakeErrorText()));
  return PrivateKey(std::move(key));
}

Result<PrivateKey> PrivateKey::FromPem(std::string_view pem) {
  if (pem.size() > kPemBytesMax) return Fail(InvalidArgumentError("a PEM file of over 1 MiB"));
  ERR_clear_error();
  const BioHandle bio = ReadFrom(pem);
  KeyHandle key(PEM_read_bio_PrivateKey(bio.get(), nullptr, NoPassword, nullptr));
  if (key == nullptr) {
    return Fail(InvalidArgumentError("no private key without a password: " + TakeErrorText()));
  }
  return PrivateKey(std::move(key));
}

std::string PrivateKey::ToPem() const {
  const BioHandle bio = MemoryBio();
  PEM_write_bio_PrivateKey(bio.get(), key_.get(), nullptr, nullptr, 0, nullptr, nullptr);
  return TakeText(bio.get());
}

}  // namespace holdfast::certificates
