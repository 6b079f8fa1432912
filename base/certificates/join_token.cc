#include "base/certificates/join_token.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <openssl/sha.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/certificates/openssl.h"

namespace holdfast::certificates {
namespace {
constexpr std::string_view kKind = "holdfast1";
constexpr size_t kHashDigits = 64;
constexpr size_t kIdDigits = 16;
constexpr size_t kSecretDigits = 32;

std::string ToHex(const unsigned char* bytes, size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) text += fmt::format("{:02x}", bytes[i]);
  return text;
}

bool IsHex(std::string_view text, size_t digits) {
  return text.size() == digits && std::ranges::all_of(text, [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}
}  // namespace

std::string JoinToken::ToText() const {
  return fmt::format("{}.{}.{}.{}", kKind, ca_hash, id, secret);
}

Result<JoinToken> JoinToken::Parse(std::string_view text) {
  std::vector<std::string_view> parts;
  while (parts.size() < 5) {
    const size_t dot = text.find('.');
    parts.push_back(text.substr(0, dot));
    if (dot == std::string_view::npos) break;
    text.remove_prefix(dot + 1);
  }
  if (parts.size() != 4 || parts[0] != kKind || !IsHex(parts[1], kHashDigits) ||
      !IsHex(parts[2], kIdDigits) || !IsHex(parts[3], kSecretDigits)) {
    return Fail(InvalidArgumentError(
        "the token is not of the form holdfast1.HASH.ID.SECRET; copy the whole line that `holdfast "
        "token create` printed"));
  }
  return JoinToken{std::string(parts[1]), std::string(parts[2]), std::string(parts[3])};
}

Result<JoinToken> MakeJoinToken(std::string ca_hash) {
  std::array<unsigned char, (kIdDigits + kSecretDigits) / 2> random{};
  if (RAND_bytes(random.data(), static_cast<int>(random.size())) != 1) {
    return Fail(InternalError("no random numbers for a token: " + TakeErrorText()));
  }
  return JoinToken{std::move(ca_hash), ToHex(random.data(), kIdDigits / 2),
                   ToHex(random.data() + kIdDigits / 2, kSecretDigits / 2)};
}

std::string HashSecret(std::string_view id, std::string_view secret) {
  const std::string text = fmt::format("{} {}.{}", kKind, id, secret);
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest{};
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data());
  return ToHex(digest.data(), digest.size());
}

bool EqualSecrets(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace holdfast::certificates
