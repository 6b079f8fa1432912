#include "agent/peers/frame_mac.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <bit>
#include <cstring>

namespace holdfast::agent {
namespace {

static_assert(std::endian::native == std::endian::little, "the number of a nonce is little-endian");
constexpr size_t kMacNonceBytes = 12;

const unsigned char* Bytes(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}

}  // namespace

Result<std::unique_ptr<FrameMac>> FrameMac::Make(const FrameKey& key) {
  std::unique_ptr<FrameMac> mac(new FrameMac(EVP_CIPHER_CTX_new()));
  if (mac->context_ == nullptr || EVP_EncryptInit_ex(mac->context_, EVP_chacha20_poly1305(),
                                                     nullptr, Bytes(key.data()), nullptr) != 1) {
    return Fail(InternalError("OpenSSL has no ChaCha20-Poly1305"));
  }
  return mac;
}

FrameMac::~FrameMac() { EVP_CIPHER_CTX_free(context_); }

void FrameMac::Begin(std::span<const std::byte> header) {
  std::array<unsigned char, kMacNonceBytes> nonce{};
  std::memcpy(nonce.data() + kMacNonceBytes - sizeof(number_), &number_, sizeof(number_));
  ++number_;  // 2^64 frames never pass over one connection
  failed_ = EVP_EncryptInit_ex(context_, nullptr, nullptr, nullptr, nonce.data()) != 1;
  Add(header);
}

void FrameMac::Add(std::span<const std::byte> payload) {
  int bytes = 0;
  // Without an output the bytes are additional data.
  failed_ = failed_ || EVP_EncryptUpdate(context_, nullptr, &bytes, Bytes(payload.data()),
                                         static_cast<int>(payload.size())) != 1;
}

Result<FrameTag> FrameMac::End() {
  FrameTag tag{};
  int bytes = 0;
  if (failed_ ||
      EVP_EncryptFinal_ex(context_, reinterpret_cast<unsigned char*>(tag.data()), &bytes) != 1 ||
      EVP_CIPHER_CTX_ctrl(context_, EVP_CTRL_AEAD_GET_TAG, kFrameTagBytes, tag.data()) != 1) {
    return Fail(InternalError("OpenSSL returned no tag for a frame"));
  }
  return tag;
}

bool SameTag(const FrameTag& a, const FrameTag& b) {
  return CRYPTO_memcmp(a.data(), b.data(), kFrameTagBytes) == 0;
}

}  // namespace holdfast::agent
