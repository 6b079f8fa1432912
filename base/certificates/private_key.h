#pragma once

#include <string>
#include <string_view>

#include "base/certificates/openssl.h"
#include "base/status.h"

namespace holdfast::certificates {

/// A private key. Thread-compatible.
class PrivateKey {
 public:
  /// Makes a new key on the curve P-256.
  static Result<PrivateKey> Generate();
  /// Reads the first private key of a PEM text. InvalidArgument: there is none, or a password
  /// protects it.
  static Result<PrivateKey> FromPem(std::string_view pem);

  /// Returns the key as PEM (PKCS #8), without a password.
  std::string ToPem() const;
  /// Returns the SHA-256 of the public key, as hex.
  std::string Hash() const { return KeyHash(key_.get()); }
  evp_pkey_st* get() const { return key_.get(); }

 private:
  explicit PrivateKey(KeyHandle key) : key_(std::move(key)) {}
  KeyHandle key_;
};

}  // namespace holdfast::certificates
