#include "agent/peers/frame.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "agent/peers/transport.h"
#include "storage/format/checksum.h"

namespace holdfast::agent {

static_assert(std::endian::native == std::endian::little, "formats are little-endian in memory");

namespace {

constexpr uint32_t kMagic = 0x46504648;  // "HFPF"
constexpr size_t kHandshakePayloadMax = 512;
constexpr size_t kProofPayloadMax = 32;
constexpr size_t kErrorPayloadMax = 2048;
constexpr size_t kRequestPayloadMax = kPeerGroupBytesMax + (64U << 10);

/// The header on the wire; the struct has no hidden padding.
struct WireHeader {
  uint32_t magic = kMagic;
  uint8_t protocol = kPeerProtocol;
  uint8_t kind = 0;
  uint16_t flags = 0;
  uint32_t payload_bytes = 0;
  uint32_t payload_crc = 0;
  uint8_t zero[12] = {};
  uint32_t header_crc = 0;
};
static_assert(sizeof(WireHeader) == kFrameHeaderBytes);
constexpr size_t kCoveredBytes = offsetof(WireHeader, header_crc);

bool IsKnown(uint8_t kind) {
  switch (static_cast<FrameKind>(kind)) {
    case FrameKind::kHello:
    case FrameKind::kChallenge:
    case FrameKind::kProof:
    case FrameKind::kWelcome:
    case FrameKind::kRequest:
    case FrameKind::kAccepted:
    case FrameKind::kData:
    case FrameKind::kEnd:
    case FrameKind::kError:
      return true;
  }
  return false;
}

}  // namespace

std::string_view FrameName(FrameKind kind) {
  switch (kind) {
    case FrameKind::kHello:
      return "Hello";
    case FrameKind::kChallenge:
      return "Challenge";
    case FrameKind::kProof:
      return "Proof";
    case FrameKind::kWelcome:
      return "Welcome";
    case FrameKind::kRequest:
      return "Request";
    case FrameKind::kAccepted:
      return "Accepted";
    case FrameKind::kData:
      return "Data";
    case FrameKind::kEnd:
      return "End";
    case FrameKind::kError:
      return "Error";
  }
  return "unknown";
}

uint32_t FramePayloadMax(FrameKind kind) {
  switch (kind) {
    case FrameKind::kHello:
    case FrameKind::kChallenge:
      return kHandshakePayloadMax;
    case FrameKind::kProof:
    case FrameKind::kWelcome:
      return kProofPayloadMax;
    case FrameKind::kRequest:
      return kRequestPayloadMax;
    case FrameKind::kAccepted:
    case FrameKind::kEnd:
      return 0;
    case FrameKind::kData:
      return kPeerUnitBytes;
    case FrameKind::kError:
      return kErrorPayloadMax;
  }
  return 0;
}

std::array<std::byte, kFrameHeaderBytes> EncodeFrameHeader(const FrameHeader& header) {
  WireHeader wire;
  wire.kind = static_cast<uint8_t>(header.kind);
  wire.flags = header.flags;
  wire.payload_bytes = header.payload_bytes;
  wire.payload_crc = header.payload_crc;
  auto bytes = std::bit_cast<std::array<std::byte, kFrameHeaderBytes>>(wire);
  const uint32_t crc = Crc32c(std::span(bytes).first(kCoveredBytes));
  std::memcpy(bytes.data() + kCoveredBytes, &crc, sizeof(crc));
  return bytes;
}

Result<FrameHeader> DecodeFrameHeader(std::span<const std::byte, kFrameHeaderBytes> bytes) {
  WireHeader wire;
  std::memcpy(&wire, bytes.data(), sizeof(wire));
  if (wire.magic != kMagic) {
    return Fail(DataLossError("the other side does not send peer frames; does it use TLS?"));
  }
  // Checked before the protocol, so that a flipped bit does not look like a newer protocol.
  if (wire.header_crc != Crc32c(bytes.first(kCoveredBytes))) {
    return Fail(DataLossError("the header of a frame does not match its checksum"));
  }
  if (wire.protocol != kPeerProtocol) {
    return Fail(UnsupportedError(
        fmt::format("the other side uses peer protocol {} and this node protocol {}: run the same "
                    "release of Holdfast on all nodes",
                    wire.protocol, kPeerProtocol)));
  }
  if (!IsKnown(wire.kind)) {
    return Fail(UnsupportedError(fmt::format("unknown kind {} of a peer frame", wire.kind)));
  }
  FrameHeader header{static_cast<FrameKind>(wire.kind), wire.flags, wire.payload_bytes,
                     wire.payload_crc};
  const uint16_t flags_allowed = header.kind == FrameKind::kError ? kFrameOfConnection : 0;
  if ((header.flags & ~flags_allowed) != 0 ||
      std::any_of(std::begin(wire.zero), std::end(wire.zero), [](uint8_t b) { return b != 0; })) {
    return Fail(UnsupportedError("a frame has fields that this release does not support"));
  }
  if (header.payload_bytes > FramePayloadMax(header.kind)) {
    return Fail(DataLossError(fmt::format("a frame {} has {} bytes; at most {} are allowed",
                                          FrameName(header.kind), header.payload_bytes,
                                          FramePayloadMax(header.kind))));
  }
  return header;
}

FrameStamp::FrameStamp(std::span<const std::byte> request_payload)
    : crc_(Crc32c(request_payload)) {}

uint32_t FrameStamp::At(uint64_t position) const {
  return ExtendCrc32c(crc_, std::as_bytes(std::span(&position, 1)));
}

}  // namespace holdfast::agent
