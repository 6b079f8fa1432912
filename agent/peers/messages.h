#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "agent/peers/transport.h"
#include "base/status.h"

namespace holdfast::agent {

// Payloads of the frames. Each has exactly one encoding. Decoders check every length against the
// available bytes before they allocate memory. Pure. Decoders return DataLoss for malformed
// payloads and InvalidArgument for values that no node may send.

inline constexpr size_t kNonceBytes = 32;
using PeerNonce = std::array<std::byte, kNonceBytes>;

/// Hello and Challenge: the identity of one side and its challenge to the other side.
struct Introduction {
  bool has_secret = false;
  PeerNonce nonce{};
  std::string cluster;
  std::string node;
  bool operator==(const Introduction&) const = default;
};
std::string EncodeIntroduction(const Introduction& introduction);
Result<Introduction> DecodeIntroduction(std::span<const std::byte> payload);

/// Request: the request and the client's random number for this stream, which makes the stamps of
/// two requests for the same bytes differ.
struct StreamRequest {
  uint64_t stream = 0;
  PeerRequest request;
  bool operator==(const StreamRequest&) const = default;
};
/// Checks what a source may rely on. InvalidArgument: the message names the problem.
Status ValidateRequest(const PeerRequest& request);
std::string EncodeRequest(const StreamRequest& request);
Result<StreamRequest> DecodeRequest(std::span<const std::byte> payload);

/// Error. `status` must not be OK; long texts are truncated.
std::string EncodeError(const Status& status);
/// Returns the sent error, with control characters replaced by '?'. DataLoss: the payload is not an
/// error.
Status DecodeError(std::span<const std::byte> payload);

}  // namespace holdfast::agent
