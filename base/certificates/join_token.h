#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace holdfast::certificates {

/// What a machine needs to join a cluster: the hash that identifies the cluster's authority, and a
/// secret that works once. One line of text: holdfast1.HASH.ID.SECRET, all in hex.
struct JoinToken {
  std::string ca_hash;  // SHA-256 of the authority's public key: 64 digits
  std::string id;       // 16 digits; no secret
  std::string secret;   // 32 digits

  std::string ToText() const;
  /// Parses a token. InvalidArgument: another form; the message has nothing of the secret.
  static Result<JoinToken> Parse(std::string_view text);
};

/// Makes an ID and a secret from the random numbers of OpenSSL.
Result<JoinToken> MakeJoinToken(std::string ca_hash);

/// Returns the SHA-256 of a secret with its token's ID, as hex. Only this is stored.
std::string HashSecret(std::string_view id, std::string_view secret);
/// Compares two texts in a time that depends only on their lengths.
bool EqualSecrets(std::string_view a, std::string_view b);

}  // namespace holdfast::certificates
