#include "agent/peers/messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "agent/peers/frame.h"
#include "base/random.h"

namespace holdfast::agent {
namespace {
using ::testing::HasSubstr;

std::span<const std::byte> Bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

std::string RandomName(Random& random) {
  std::string name;
  for (uint64_t left = 1 + random.Below(128); left > 0; --left) {
    name += "abcXYZ019._-"[random.Below(12)];
  }
  return name == "." || name == ".." ? "a" : name;
}

StreamRequest RandomRequest(Random& random) {
  StreamRequest request;
  request.stream = random.Next();
  PeerRequest& inner = request.request;
  inner.kind = static_cast<PeerRequestKind>(1 + random.Below(5));
  inner.job = RandomName(random);
  inner.version = {Incarnation{1 + random.Next() / 2}, Step{random.Next()}};
  inner.incarnation = Incarnation{1 + random.Next() / 2};
  inner.rank = Rank{static_cast<uint32_t>(random.Next())};
  inner.stripe = static_cast<uint32_t>(random.Next());
  inner.index = static_cast<uint32_t>(random.Next());
  inner.offset = random.Next() / 2;
  inner.bytes = random.Next() / 2;
  const bool of_shard =
      inner.kind == PeerRequestKind::kShard || inner.kind == PeerRequestKind::kSeal;
  inner.sealed = of_shard && random.Below(2) == 0;
  if (inner.sealed) inner.digest = random.Next();
  if (inner.kind == PeerRequestKind::kDecode) {
    inner.group.assign(random.Below(1000), static_cast<char>(random.Next()));
  }
  return request;
}

TEST(MessagesTest, RequestsRoundTripAndOtherLengthsAreRefused) {
  Random random(5);
  for (int i = 0; i < 200; ++i) {
    const StreamRequest request = RandomRequest(random);
    const std::string payload = EncodeRequest(request);
    EXPECT_LE(payload.size(), FramePayloadMax(FrameKind::kRequest));
    const auto decoded = DecodeRequest(Bytes(payload));
    ASSERT_TRUE(decoded) << decoded.error().ToString();
    EXPECT_EQ(*decoded, request);
    for (size_t bytes = 0; bytes < payload.size(); bytes += 1 + bytes / 8) {
      EXPECT_EQ(DecodeRequest(Bytes(payload).first(bytes)).error().code(), ErrorCode::kDataLoss);
    }
    EXPECT_FALSE(DecodeRequest(Bytes(payload + "x")));
  }
}

TEST(MessagesTest, TheLargestGroupFitsIntoARequest) {
  StreamRequest request;
  request.request.kind = PeerRequestKind::kDecode;
  request.request.job = std::string(128, 'j');
  request.request.version.incarnation = Incarnation{1};
  request.request.incarnation = Incarnation{1};
  request.request.group.assign(kPeerGroupBytesMax, 'g');
  EXPECT_EQ(ValidateRequest(request.request), Status::Ok());
  EXPECT_LE(EncodeRequest(request).size(), FramePayloadMax(FrameKind::kRequest));
  request.request.group += 'g';
  EXPECT_EQ(ValidateRequest(request.request).code(), ErrorCode::kInvalidArgument);
}

TEST(MessagesTest, RequestsThatNoNodeMaySendAreRefused) {
  Random random(6);
  const auto refused = [&](const std::function<void(PeerRequest&)>& change) {
    StreamRequest request = RandomRequest(random);
    request.request.kind = PeerRequestKind::kShard;
    request.request.group.clear();
    EXPECT_TRUE(DecodeRequest(Bytes(EncodeRequest(request))));
    change(request.request);
    const auto decoded = DecodeRequest(Bytes(EncodeRequest(request)));
    EXPECT_FALSE(decoded);
    EXPECT_EQ(ValidateRequest(request.request), decoded.error()) << "both sides run the same check";
    EXPECT_EQ(decoded.error().code(), ErrorCode::kInvalidArgument);
    return decoded.error().message();
  };
  EXPECT_THAT(refused([](PeerRequest& r) { r.job = "../x"; }), HasSubstr("job"));
  EXPECT_THAT(refused([](PeerRequest& r) { r.job = ""; }), HasSubstr("empty"));
  EXPECT_THAT(refused([](PeerRequest& r) { r.kind = static_cast<PeerRequestKind>(7); }),
              HasSubstr("kind 7"));
  EXPECT_THAT(refused([](PeerRequest& r) { r.kind = static_cast<PeerRequestKind>(0); }),
              HasSubstr("kind 0"));
  EXPECT_THAT(refused([](PeerRequest& r) { r.version.incarnation.value = 0; }),
              HasSubstr("incarnations"));
  EXPECT_THAT(refused([](PeerRequest& r) { r.incarnation.value = 0; }), HasSubstr("incarnations"));
  EXPECT_THAT(refused([](PeerRequest& r) {
                r.offset = ~uint64_t{0};
                r.bytes = 1;
              }),
              HasSubstr("beyond"));
  EXPECT_THAT(refused([](PeerRequest& r) { r.group = "g"; }), HasSubstr("group"));
  EXPECT_THAT(refused([](PeerRequest& r) {
                r.sealed = true;
                r.kind = PeerRequestKind::kParityRow;
              }),
              HasSubstr("sealed"));
  EXPECT_THAT(refused([](PeerRequest& r) {
                r.sealed = false;
                r.digest = 1;
              }),
              HasSubstr("digest"));
}

TEST(MessagesTest, IntroductionsRoundTrip) {
  Random random(7);
  for (int i = 0; i < 200; ++i) {
    Introduction introduction;
    introduction.has_secret = random.OneIn(2);
    for (std::byte& byte : introduction.nonce) byte = static_cast<std::byte>(random.Next());
    introduction.cluster = RandomName(random);
    introduction.node = RandomName(random);
    const std::string payload = EncodeIntroduction(introduction);
    EXPECT_LE(payload.size(), FramePayloadMax(FrameKind::kHello));
    EXPECT_EQ(DecodeIntroduction(Bytes(payload)).value(), introduction);
    for (size_t bytes = 0; bytes < payload.size(); ++bytes) {
      EXPECT_FALSE(DecodeIntroduction(Bytes(payload).first(bytes)));
    }
    EXPECT_FALSE(DecodeIntroduction(Bytes(payload + "x")));
    std::string bad = payload;
    bad[0] = 2;
    EXPECT_FALSE(DecodeIntroduction(Bytes(bad)));
    bad = payload;
    bad.back() = '/';
    EXPECT_EQ(DecodeIntroduction(Bytes(bad)).error().code(), ErrorCode::kInvalidArgument);
  }
}

TEST(MessagesTest, ErrorsRoundTripWithoutControlCharacters) {
  for (uint32_t code = 1; code <= 16; ++code) {
    const Status status(ErrorFromNumber(code), "why: “quoted”");
    EXPECT_EQ(DecodeError(Bytes(EncodeError(status))), status);
  }
  const std::string longest = EncodeError(DataLossError(std::string(100'000, 'x')));
  EXPECT_EQ(longest.size(), FramePayloadMax(FrameKind::kError));
  EXPECT_EQ(DecodeError(Bytes(longest)).message().size(), longest.size() - 1);
  EXPECT_EQ(DecodeError(Bytes(EncodeError(AbortedError("\x1b[2Ja\nb\x7f")))).message(), "?[2Ja?b?");
  EXPECT_EQ(DecodeError(Bytes(std::string("\xc8text"))).code(), ErrorCode::kInternal);
  EXPECT_EQ(DecodeError({}).code(), ErrorCode::kDataLoss);
  EXPECT_EQ(DecodeError(Bytes(std::string("\0ok", 3))).code(), ErrorCode::kDataLoss)
      << "OK is not an error";
}

TEST(MessagesTest, RequestsAsText) {
  PeerRequest request;
  request.job = "gpt";
  request.version = {Incarnation{3}, Step{120}};
  request.rank = Rank{7};
  request.offset = 10;
  request.bytes = 5;
  EXPECT_EQ(ToString(request), "shard gpt/3-120/rank-7 [10, 15)");
  request.rank = ParityRank(2);
  EXPECT_EQ(ToString(request), "shard gpt/3-120/parity-2 [10, 15)");
  request.kind = PeerRequestKind::kDecode;
  request.stripe = 1;
  request.index = 4;
  EXPECT_EQ(ToString(request), "decoded segment 4 of stripe 1 of gpt/3-120 [10, 15)");
  request.kind = PeerRequestKind::kProbe;
  EXPECT_EQ(ToString(request), "probe [10, 15)");
}

}  // namespace
}  // namespace holdfast::agent
