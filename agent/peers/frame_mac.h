#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/status.h"

// Declared here, so that this header does not include OpenSSL's.
struct evp_cipher_ctx_st;

namespace holdfast::agent {

inline constexpr size_t kFrameKeyBytes = 32;
inline constexpr size_t kFrameTagBytes = 16;
using FrameKey = std::array<std::byte, kFrameKeyBytes>;
using FrameTag = std::array<std::byte, kFrameTagBytes>;

/// The keys of one connection, one for each direction.
struct FrameKeys {
  FrameKey sent{};
  FrameKey received{};
};

/// Authenticates the frames of one direction of a connection without encrypting them:
/// ChaCha20-Poly1305 (RFC 8439) of no text, with the frame as additional data. The nonce is the
/// number of the frame. A frame that was changed, repeated, omitted or moved has another tag.
/// Thread-compatible.
class FrameMac {
 public:
  /// A key must not be used for two objects that make tags.
  static Result<std::unique_ptr<FrameMac>> Make(const FrameKey& key);
  ~FrameMac();
  FrameMac(const FrameMac&) = delete;
  FrameMac& operator=(const FrameMac&) = delete;

  /// Begins the next frame with its header.
  void Begin(std::span<const std::byte> header);
  /// Continues the frame with bytes of its payload.
  void Add(std::span<const std::byte> payload);
  /// Ends the frame and returns its tag.
  Result<FrameTag> End();

 private:
  explicit FrameMac(evp_cipher_ctx_st* context) : context_(context) {}
  evp_cipher_ctx_st* const context_;
  uint64_t number_ = 0;  // of the next frame
  bool failed_ = false;  // an OpenSSL call of this frame
};

/// Compares in constant time.
bool SameTag(const FrameTag& a, const FrameTag& b);

}  // namespace holdfast::agent
