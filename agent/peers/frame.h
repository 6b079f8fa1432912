#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/status.h"

namespace holdfast::agent {

// Everything on a peer connection is a frame: a fixed header and a payload, described in
// docs/formats/peer-frames.md. Pure.

inline constexpr uint8_t kPeerProtocol = 2;
inline constexpr size_t kFrameHeaderBytes = 32;

/// The values are stable (wire format).
enum class FrameKind : uint8_t {
  // the handshake, in this order
  kHello = 1,      // client: Introduction
  kChallenge = 2,  // server: Introduction
  kProof = 3,      // client: HMAC; no payload without a secret
  kWelcome = 4,    // server: HMAC; no payload without a secret
  // one request at a time
  kRequest = 16,   // client: StreamRequest
  kAccepted = 32,  // server: the source has opened the object; no payload
  kData = 33,      // server: 1 to kPeerUnitBytes bytes of it
  kEnd = 34,       // server: the object ends before the request's range; no payload
  kError = 35,     // server: code and text; ends the request
};

/// Flag of an Error that concerns the connection and not a request. Its checksum has no stamp, and
/// the connection ends after it.
inline constexpr uint16_t kFrameOfConnection = 1;

struct FrameHeader {
  FrameKind kind = FrameKind::kHello;
  uint16_t flags = 0;
  uint32_t payload_bytes = 0;
  uint32_t payload_crc = 0;  // of stamp and payload
  bool operator==(const FrameHeader&) const = default;
};

/// Returns the kind's name: "Data" for kData.
std::string_view FrameName(FrameKind kind);

/// Returns the longest payload of a kind. Longer payloads are neither allocated nor received.
uint32_t FramePayloadMax(FrameKind kind);

std::array<std::byte, kFrameHeaderBytes> EncodeFrameHeader(const FrameHeader& header);

/// Decodes a header. DataLoss: no header, a damaged header, or a payload that is too long.
/// Unsupported: an intact header of another protocol or of an unknown kind.
Result<FrameHeader> DecodeFrameHeader(std::span<const std::byte, kFrameHeaderBytes> bytes);

/// The checksum of an answer covers, in addition to its payload, data that is not sent again: the
/// complete request (job, version, rank, incarnation, number of the stream …) and the position of
/// the answer. A frame that is misdirected, out of order or replayed has another checksum.
class FrameStamp {
 public:
  explicit FrameStamp(std::span<const std::byte> request_payload);
  /// Returns the CRC-32C at which the checksum of an answer at `position` of the object starts.
  uint32_t At(uint64_t position) const;

 private:
  uint32_t crc_;
};

/// The value at which the checksums of all other frames start.
inline constexpr uint32_t kNoStamp = 0;

}  // namespace holdfast::agent
