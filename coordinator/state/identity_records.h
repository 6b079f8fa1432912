#pragma once

#include <cstdint>
#include <string>

// The records of join tokens and of the names that certificates were issued for.

namespace holdfast::coord {

/// A join token. Its secret is not stored, only the secret's hash.
struct TokenRecord {
  std::string id;
  std::string secret_hash;
  std::string role;
  std::string name;  // empty: the machine chooses a name that no valid certificate has
  int64_t created_wall_nanos = 0;
  int64_t expires_wall_nanos = 0;
  std::string used_key = {};   // hash of the public key that joined with it; empty: not used
  std::string used_name = {};  // the name that joined with it
  bool operator==(const TokenRecord&) const = default;
};

/// A role and name that a certificate was issued for, or whose certificates are revoked.
struct IdentityRecord {
  std::string role;
  std::string name;
  std::string key;  // hash of the public key in the newest certificate; empty: none was issued here
  int64_t issued_wall_nanos = 0;
  int64_t expires_wall_nanos = 0;  // end of the newest certificate
  /// Certificates that begin at or before this time, in seconds since 1970, are refused. 0: none.
  int64_t revoked_s = 0;
  std::string why = {};  // of the revocation
  bool operator==(const IdentityRecord&) const = default;
};

}  // namespace holdfast::coord
