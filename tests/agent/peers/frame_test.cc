#include "agent/peers/frame.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <string>

#include "agent/peers/messages.h"
#include "agent/peers/transport.h"
#include "base/random.h"
#include "storage/format/checksum.h"

namespace holdfast::agent {
namespace {
using ::testing::HasSubstr;
using HeaderBytes = std::array<std::byte, kFrameHeaderBytes>;

constexpr FrameKind kKinds[] = {FrameKind::kHello,   FrameKind::kChallenge, FrameKind::kProof,
                                FrameKind::kWelcome, FrameKind::kRequest,   FrameKind::kAccepted,
                                FrameKind::kData,    FrameKind::kEnd,       FrameKind::kError};

/// Returns `bytes` with the matching checksum.
HeaderBytes Sealed(HeaderBytes bytes) {
  const uint32_t crc = Crc32c(std::span(bytes).first(28));
  std::memcpy(bytes.data() + 28, &crc, sizeof(crc));
  return bytes;
}

std::string Hex(std::span<const std::byte> bytes) {
  std::string text;
  for (std::byte byte : bytes) text += fmt::format("{:02x}", static_cast<int>(byte));
  return text;
}

TEST(FrameTest, TheExampleOfTheFormatPage) {
  StreamRequest request;
  request.stream = 7;
  request.request.job = "gpt";
  request.request.version = {Incarnation{3}, Step{120}};
  request.request.incarnation = Incarnation{4};
  request.request.rank = Rank{1};
  request.request.bytes = 5;
  request.request.sealed = true;
  request.request.digest = 0x1122334455667788;
  const std::string payload = EncodeRequest(request);
  const auto bytes = std::as_bytes(std::span(payload));
  EXPECT_EQ(Hex(bytes),
            "0700000000000000"
            "01"
            "03677074"
            "0300000000000000"
            "7800000000000000"
            "0400000000000000"
            "01000000"
            "00000000"
            "00000000"
            "0000000000000000"
            "0500000000000000"
            "01"
            "8877665544332211"
            "00000000");
  EXPECT_EQ(Hex(EncodeFrameHeader({FrameKind::kRequest, 0, 78, Crc32c(bytes)})),
            "48465046021000004e0000002a1a2fdb000000000000000000000000af2c6452");
  const FrameStamp stamp(bytes);
  EXPECT_EQ(Hex(EncodeFrameHeader({FrameKind::kAccepted, 0, 0, stamp.At(0)})),
            "4846504602200000"
            "0000000099e0256b"
            "000000000000000000000000"
            "bc7dfd15");
  const std::string hello = "hello";
  const uint32_t crc = ExtendCrc32c(stamp.At(0), std::as_bytes(std::span(hello)));
  EXPECT_EQ(Hex(EncodeFrameHeader({FrameKind::kData, 0, 5, crc})),
            "4846504602210000"
            "05000000fa6a105b"
            "000000000000000000000000"
            "934ea5c8");
}

TEST(FrameTest, HeadersRoundTrip) {
  Random random(11);
  for (int i = 0; i < 2000; ++i) {
    FrameHeader header;
    header.kind = kKinds[random.Below(std::size(kKinds))];
    header.flags = header.kind == FrameKind::kError ? random.Below(2) : 0;
    header.payload_bytes = random.Below(uint64_t{FramePayloadMax(header.kind)} + 1);
    header.payload_crc = static_cast<uint32_t>(random.Next());
    const auto decoded = DecodeFrameHeader(EncodeFrameHeader(header));
    ASSERT_TRUE(decoded) << decoded.error().ToString();
    EXPECT_EQ(*decoded, header);
  }
}

TEST(FrameTest, EveryFlippedBitIsDetected) {
  const HeaderBytes good = EncodeFrameHeader({FrameKind::kRequest, 0, 77, 123456});
  for (size_t bit = 0; bit < kFrameHeaderBytes * 8; ++bit) {
    HeaderBytes bytes = good;
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    const auto decoded = DecodeFrameHeader(bytes);
    ASSERT_FALSE(decoded) << "bit " << bit;
    EXPECT_EQ(decoded.error().code(), ErrorCode::kDataLoss) << "bit " << bit;
  }
}

TEST(FrameTest, IntactHeadersOfAnotherKindOrProtocolAreUnsupported) {
  HeaderBytes bytes = EncodeFrameHeader({FrameKind::kHello, 0, 0, 0});
  bytes[4] = std::byte{3};
  auto decoded = DecodeFrameHeader(Sealed(bytes));
  ASSERT_FALSE(decoded);
  EXPECT_EQ(decoded.error().code(), ErrorCode::kUnsupported);
  EXPECT_THAT(decoded.error().message(), HasSubstr("protocol 3"));
  std::set<int> known;
  for (FrameKind kind : kKinds) known.insert(static_cast<int>(kind));
  for (int kind = 0; kind < 256; ++kind) {
    bytes = EncodeFrameHeader({FrameKind::kHello, 0, 0, 0});
    bytes[5] = static_cast<std::byte>(kind);
    decoded = DecodeFrameHeader(Sealed(bytes));
    EXPECT_EQ(decoded.has_value(), known.count(kind) == 1) << kind;
    if (!decoded) {
      EXPECT_EQ(decoded.error().code(), ErrorCode::kUnsupported);
    }
  }
  // Reserved bytes that are not zero belong to a newer release.
  for (size_t at = 16; at < 28; ++at) {
    bytes = EncodeFrameHeader({FrameKind::kHello, 0, 0, 0});
    bytes[at] = std::byte{1};
    EXPECT_EQ(DecodeFrameHeader(Sealed(bytes)).error().code(), ErrorCode::kUnsupported) << at;
  }
  for (int flag = 0; flag < 16; ++flag) {
    bytes = EncodeFrameHeader({FrameKind::kError, 0, 0, 0});
    bytes[6 + flag / 8] = std::byte{1} << (flag % 8);
    EXPECT_EQ(DecodeFrameHeader(Sealed(bytes)).has_value(), flag == 0) << flag;
    bytes[5] = static_cast<std::byte>(FrameKind::kData);
    EXPECT_FALSE(DecodeFrameHeader(Sealed(bytes))) << flag;
  }
}

TEST(FrameTest, LengthsAreBoundedByKind) {
  EXPECT_EQ(FramePayloadMax(FrameKind::kData), kPeerUnitBytes);
  EXPECT_EQ(FramePayloadMax(FrameKind::kRequest), kPeerGroupBytesMax + (64U << 10));
  for (FrameKind kind : kKinds) {
    const uint32_t most = FramePayloadMax(kind);
    EXPECT_LE(most, kPeerGroupBytesMax + (64U << 10));
    EXPECT_TRUE(DecodeFrameHeader(EncodeFrameHeader({kind, 0, most, 0}))) << FrameName(kind);
    for (uint32_t bytes : {most + 1, ~uint32_t{0}}) {
      const auto decoded = DecodeFrameHeader(EncodeFrameHeader({kind, 0, bytes, 0}));
      ASSERT_FALSE(decoded) << FrameName(kind);
      EXPECT_EQ(decoded.error().code(), ErrorCode::kDataLoss);
      EXPECT_THAT(decoded.error().message(), HasSubstr(std::to_string(bytes)));
    }
  }
}

TEST(FrameTest, TheStampCoversRequestAndPosition) {
  const std::string request = "a request";
  const FrameStamp stamp(std::as_bytes(std::span(request)));
  // The same as one checksum over the concatenated bytes.
  std::string all = request + std::string("\x07\0\0\0\0\x01\0\0", 8) + "payload";
  const std::string payload = "payload";
  EXPECT_EQ(ExtendCrc32c(stamp.At(7 + (1ULL << 40)), std::as_bytes(std::span(payload))),
            Crc32c(std::as_bytes(std::span(all))));
  std::set<uint32_t> seen;
  for (uint64_t position = 0; position < 1000; ++position) {
    seen.insert(stamp.At(position * kPeerUnitBytes));
  }
  EXPECT_EQ(seen.size(), 1000U);
  const std::string other = "A request";
  EXPECT_NE(FrameStamp(std::as_bytes(std::span(other))).At(0), stamp.At(0));
}

}  // namespace
}  // namespace holdfast::agent
