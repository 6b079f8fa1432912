#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "agent/peers/frame.h"
#include "agent/peers/messages.h"
#include "storage/format/checksum.h"
#include "tests/fuzz/require.h"

namespace holdfast::agent {
namespace {

void RequireRefusal(const Status& status) {
  FUZZ_REQUIRE(!status.message().empty());
  FUZZ_REQUIRE(status.code() == ErrorCode::kDataLoss || status.code() == ErrorCode::kUnsupported ||
               status.code() == ErrorCode::kInvalidArgument);
}

bool IsSpelling(const std::string& encoded, std::span<const std::byte> bytes) {
  return std::ranges::equal(std::as_bytes(std::span(encoded)), bytes);
}

void DecodeHeader(std::span<const std::byte, kFrameHeaderBytes> bytes) {
  const auto header = DecodeFrameHeader(bytes);
  if (!header) return RequireRefusal(header.error());
  // Each header has exactly one encoding, and its payload is within the limit of its kind.
  FUZZ_REQUIRE(std::ranges::equal(EncodeFrameHeader(*header), bytes));
  FUZZ_REQUIRE(header->payload_bytes <= FramePayloadMax(header->kind));
  FUZZ_REQUIRE(FramePayloadMax(header->kind) <= kPeerGroupBytesMax + (64U << 10));
}

void DecodePayloads(std::span<const std::byte> bytes) {
  const auto introduction = DecodeIntroduction(bytes);
  if (introduction) {
    FUZZ_REQUIRE(IsSpelling(EncodeIntroduction(*introduction), bytes));
  } else {
    RequireRefusal(introduction.error());
  }
  const auto request = DecodeRequest(bytes);
  if (request) {
    FUZZ_REQUIRE(IsSpelling(EncodeRequest(*request), bytes));
    FUZZ_REQUIRE(ValidateRequest(request->request).ok());
    FUZZ_REQUIRE(request->request.offset + request->request.bytes >= request->request.offset);
    FUZZ_REQUIRE(!ToString(request->request).empty());
  } else {
    RequireRefusal(request.error());
  }
  const Status error = DecodeError(bytes);
  FUZZ_REQUIRE(!error.ok());
  for (char c : error.message()) FUZZ_REQUIRE(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f);
}

}  // namespace
}  // namespace holdfast::agent

/// Decodes the input as each kind of payload, and its beginning as a header. The header is decoded
/// unchanged and with a correct checksum, since a wrong one hides the checks that follow.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace holdfast;
  using namespace holdfast::agent;
  const auto bytes = std::as_bytes(std::span(data, size));
  DecodePayloads(bytes);
  if (size < kFrameHeaderBytes) return 0;
  std::array<std::byte, kFrameHeaderBytes> header;
  std::memcpy(header.data(), data, header.size());
  DecodeHeader(header);
  const uint32_t crc = Crc32c(std::span(header).first(kFrameHeaderBytes - sizeof(uint32_t)));
  std::memcpy(header.data() + kFrameHeaderBytes - sizeof(crc), &crc, sizeof(crc));
  DecodeHeader(header);
  return 0;
}
