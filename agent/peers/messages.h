#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "agent/peers/transport.h"
#include "storage/base/status.h"

namespace holdfast::agent {

// Payloads of the frames: one spelling each, every length checked against the bytes that are there
// before anything is allocated. Pure. Decoders return DataLoss for what does not add up and
// InvalidArgument for values that no node may send.

inline constexpr size_t kNonceBytes = 32;
using PeerNonce = std::array<std::byte, kNonceBytes>;

/// Hello and Challenge: who one side is, and the challenge for the other.
struct Introduction {
  bool has_secret = false;
  PeerNonce nonce{};
  std::string cluster;
  std::string node;
  bool operator==(const Introduction&) const = default;
};
std::string EncodeIntroduction(const Introduction& introduction);
Result<Introduction> DecodeIntroduction(std::span<const std::byte> payload);

/// Request: what is asked, and the asker's random number for this stream, which makes the stamps of
/// two requests for the same bytes differ.
struct StreamRequest {
  uint64_t stream = 0;
  PeerRequest request;
  bool operator==(const StreamRequest&) const = default;
};
/// What a source may rely on; InvalidArgument says what is wrong.
Status ValidateRequest(const PeerRequest& request);
std::string EncodeRequest(const StreamRequest& request);
Result<StreamRequest> DecodeRequest(std::span<const std::byte> payload);

/// Error. `status` is not OK; long texts are cut.
std::string EncodeError(const Status& status);
/// The error that was sent; characters that a terminal obeys become '?'. DataLoss: not an error.
Status DecodeError(std::span<const std::byte> payload);

}  // namespace holdfast::agent
