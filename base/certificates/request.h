#pragma once

#include <string>
#include <string_view>

#include "base/certificates/openssl.h"
#include "base/certificates/private_key.h"
#include "base/status.h"

namespace holdfast::certificates {

/// A certificate signing request: a public key, and the proof that its sender has the private key.
/// The names in a request do not count: the authority decides them.
class Request {
 public:
  /// Makes a request for `key`.
  static Result<Request> Make(const PrivateKey& key);
  /// Reads a request and checks its signature. InvalidArgument: damaged, signed by another key, or
  /// a key that is too weak.
  static Result<Request> FromPem(std::string_view pem);

  std::string ToPem() const;
  /// Returns the SHA-256 of the public key, as hex.
  std::string Hash() const;
  /// Returns the public key; the request owns the key.
  evp_pkey_st* key() const;

 private:
  explicit Request(RequestHandle request) : request_(std::move(request)) {}
  RequestHandle request_;
};

}  // namespace holdfast::certificates
