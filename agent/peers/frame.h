#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "storage/base/status.h"

namespace holdfast::agent {

// Everything on a peer connection is a frame: a fixed header and a payload, described in
// docs/formats/peer-frames.md. Pure.

inline constexpr uint8_t kPeerProtocol = 1;
inline constexpr size_t kFrameHeaderBytes = 32;

/// The numbers are stable (wire).
enum class FrameKind : uint8_t {
  // the handshake, in this order
  kHello = 1,      // client: Introduction
  kChallenge = 2,  // server: Introduction
  kProof = 3,      // client: HMAC, empty without a secret
  kWelcome = 4,    // server: the same
  // one request at a time
  kRequest = 16,   // client: StreamRequest
  kAccepted = 32,  // server: the source has opened the object; empty
  kData = 33,      // server: 1 to kPeerUnitBytes bytes of it
  kEnd = 34,       // server: the object ends before the request does; empty
  kError = 35,     // server: code and text; ends the request
};

/// Flag of an Error that is about the connection and not about a request: its checksum has no
/// stamp, and the connection ends.
inline constexpr uint16_t kFrameOfConnection = 1;

struct FrameHeader {
  FrameKind kind = FrameKind::kHello;
  uint16_t flags = 0;
  uint32_t payload_bytes = 0;
  uint32_t payload_crc = 0;  // of stamp and payload
  bool operator==(const FrameHeader&) const = default;
};

/// "Data" for kData.
std::string_view FrameName(FrameKind kind);

/// Longest payload of a kind: nothing is allocated or received for a longer one.
uint32_t FramePayloadMax(FrameKind kind);

std::array<std::byte, kFrameHeaderBytes> EncodeFrameHeader(const FrameHeader& header);

/// DataLoss: not a header, a damaged one, or a payload that is too long. Unsupported: another
/// protocol or kind, whose header is intact.
Result<FrameHeader> DecodeFrameHeader(std::span<const std::byte, kFrameHeaderBytes> bytes);

/// What the checksum of an answer covers beside its payload, without being sent again: the whole
/// request (job, version, rank, incarnation, number of the stream …) and the position that the
/// answer is for. A frame that is misdirected, out of place or replayed has another checksum.
class FrameStamp {
 public:
  explicit FrameStamp(std::span<const std::byte> request_payload);
  /// The CRC-32C to start from for an answer at `position` of the object.
  uint32_t At(uint64_t position) const;

 private:
  uint32_t crc_;
};

/// Where the checksums of all other frames start.
inline constexpr uint32_t kNoStamp = 0;

}  // namespace holdfast::agent
