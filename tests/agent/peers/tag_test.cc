// Frames with tags: what a machine between two peers may read, and that it can change nothing.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <utility>

#include "agent/peers/frame_mac.h"
#include "base/certificates/authority.h"
#include "tests/agent/peers/frame_tap.h"
#include "tests/agent/peers/peers_test_util.h"

namespace holdfast::agent {
namespace {
using ::testing::HasSubstr;
namespace c = certificates;

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kObjectBytes = 3 * kMiB;

// Made with another library.
TEST(FrameMacTest, TagsOfTheFormatPage) {
  FrameKey key{};
  for (size_t i = 0; i < key.size(); ++i) key[i] = static_cast<std::byte>(i);
  auto mac = FrameMac::Make(key);
  ASSERT_TRUE(mac);
  const auto tag = [&](const std::string& header, const std::string& payload) {
    (*mac)->Begin(std::as_bytes(std::span(header)));
    (*mac)->Add(std::as_bytes(std::span(payload)));
    const FrameTag made = *(*mac)->End();
    std::string hex;
    for (std::byte byte : made) hex += fmt::format("{:02x}", static_cast<int>(byte));
    return hex;
  };
  EXPECT_EQ(tag("header", "hello"), "19be9f10efeb3b842fa526dae9c49cee");
  EXPECT_EQ(tag("header", "hello"), "d38c7690cd08e1818c2340db79a664bf")
      << "the number of the frame counts";
  EXPECT_EQ(tag("header", ""), "b14b6964f27d1085476e8b9eec738853");
}

class FrameTagTest : public ::testing::Test {
 protected:
  FrameTagTest() {
    const int64_t now = Clock::Real().WallNanos() / 1'000'000'000;
    const auto authority = *c::Authority::Create("test", now);
    const std::string ca = dir_.Write("ca", authority.certificate().ToPem());
    const auto issue = [&](const std::string& node) {
      const auto key = *c::PrivateKey::Generate();
      const auto made = authority.Sign(
          key.get(), {"spiffe://test/agent/" + node, {"127.0.0.1"}, now - 60, now + 3600});
      const std::string file = dir_.Write(node, made->ToPem() + key.ToPem());
      return PeerTlsFiles{ca, file, file};
    };
    server_options_.cluster = transport_options_.cluster = "test";
    server_options_.node = "server";
    transport_options_.node = "client";
    server_options_.tls = issue("server");
    transport_options_.tls = issue("client");
    server_options_.encrypt = transport_options_.encrypt = false;
    server_options_.revoked = &revoked_;
  }

  /// What a client got through the tap until the end or an error.
  struct Outcome {
    std::vector<std::byte> bytes;
    Status status;
  };
  /// Reads the object through a tap that may change the frames.
  Outcome ReadThrough(FrameTap::Change from_server, FrameTap::Change from_client = nullptr) {
    auto server = TcpPeerServer::Start(server_options_, source_, Clock::Real());
    EXPECT_TRUE(server) << server.error().ToString();
    FrameTap tap((*server)->address(), std::move(from_client), std::move(from_server), cut_at_);
    auto transport = MakeTcpTransport(transport_options_, Clock::Real());
    Outcome outcome;
    auto stream = (*transport)->Open(tap.address(), ShardRequest(1, 0, kObjectBytes), In(10'000));
    if (!stream) {
      outcome.status = stream.error();
    } else {
      std::vector<std::byte> unit(kPeerUnitBytes);
      for (;;) {
        const auto got = (*stream)->Read(unit, In(10'000));
        if (!got) outcome.status = got.error();
        if (!got || *got == 0) break;
        outcome.bytes.insert(outcome.bytes.end(), unit.begin(),
                             unit.begin() + static_cast<ptrdiff_t>(*got));
      }
      stream->reset();
    }
    (*server)->Stop();
    rejected_ = (*server)->counters().rejected;
    streams_ = (*server)->counters().streams;
    encrypted_ = (*server)->counters().modes.count(FrameMode::kTls);
    tagged_ = (*server)->counters().modes.count(FrameMode::kMac);
    wire_ = tap.Wire();
    return outcome;
  }
  /// Whether the bytes of the object can be read on the wire.
  bool IsLegible() const {
    const auto part = std::span(object_.bytes()).subspan(100, 64);
    return wire_.find({reinterpret_cast<const char*>(part.data()), part.size()}) !=
           std::string::npos;
  }
  /// Expects that the client got only the first `units` units, and the error of a wrong tag.
  void ExpectRefused(const Outcome& outcome, uint64_t units, const std::string& what) {
    EXPECT_EQ(outcome.status.code(), ErrorCode::kDataLoss) << what << outcome.status.ToString();
    EXPECT_THAT(outcome.status.message(), HasSubstr("does not match its tag")) << what;
    EXPECT_TRUE(Same(outcome.bytes, std::span(object_.bytes()).first(units * kMiB))) << what;
  }

  TempDir dir_;
  TestSource source_;
  TestObject& object_ = source_.Add(1, kObjectBytes);
  c::RevokedNames revoked_;
  size_t cut_at_ = SIZE_MAX;
  TcpPeerServerOptions server_options_;
  TcpTransportOptions transport_options_;
  uint64_t rejected_ = 0;
  uint64_t streams_ = 0;
  uint64_t encrypted_ = 0;  // connections
  uint64_t tagged_ = 0;
  std::string wire_;
};

// Frames of the server: 0 is Accepted, 1 to 3 are Data.

TEST_F(FrameTagTest, FramesWithTagsAreReadableAndEncryptedOnesAreNot) {
  for (const bool server : {false, true}) {
    for (const bool client : {false, true}) {
      server_options_.encrypt = server;
      transport_options_.encrypt = client;
      const Outcome outcome = ReadThrough(nullptr);
      EXPECT_EQ(outcome.status, Status::Ok());
      EXPECT_TRUE(Same(outcome.bytes, object_.bytes()));
      // One side that insists is enough.
      EXPECT_EQ(IsLegible(), !server && !client) << server << client;
      EXPECT_EQ(wire_.find("HFPF") != std::string::npos, !server && !client);
      EXPECT_EQ(tagged_, !server && !client ? 1U : 0U);
      EXPECT_EQ(encrypted_, !server && !client ? 0U : 1U);
    }
  }
}

TEST_F(FrameTagTest, AChangedFrameIsRefused) {
  struct Case {
    std::string what;
    FrameTap::Edit edit;
  };
  const std::vector<Case> cases = {
      {"first bit of the payload", [](std::string& frame) { frame[kFrameHeaderBytes] ^= 1; }},
      {"last bit of the payload",
       [](std::string& frame) { frame[frame.size() - kFrameTagBytes - 1] ^= '\x80'; }},
      {"first bit of the tag",
       [](std::string& frame) { frame[frame.size() - kFrameTagBytes] ^= 1; }},
      {"last bit of the tag", [](std::string& frame) { frame.back() ^= '\x80'; }},
      {"the tag of nothing",
       [](std::string& frame) { frame.replace(frame.size() - kFrameTagBytes, 16, 16, '\0'); }},
      {"another checksum with a right checksum of the header",
       [](std::string& frame) {
         frame[12] ^= 1;
         FrameTap::CorrectHeader(frame);
       }},
      {"another length with a right checksum of the header",
       [](std::string& frame) {
         frame[8] = 1;  // 1 MiB and 1 byte is too long, so the length becomes 1
         frame[10] = 0;
         FrameTap::CorrectHeader(frame);
       }},
  };
  for (const Case& one : cases) {
    for (const size_t at : {1U, 2U, 3U}) {
      const Outcome outcome = ReadThrough(FrameTap::EditAt(at, one.edit));
      ExpectRefused(outcome, at - 1, one.what);
    }
  }
}

TEST_F(FrameTagTest, AnErrorThatTheServerDidNotSendIsRefused) {
  // An End in place of Data would cut the object short; its checksum is the stamp, as in the Data.
  const Outcome outcome = ReadThrough(FrameTap::EditAt(2, [](std::string& frame) {
    frame.erase(kFrameHeaderBytes, kMiB);
    frame[5] = static_cast<char>(FrameKind::kEnd);
    frame.replace(8, 4, 4, '\0');
    FrameTap::CorrectHeader(frame);
  }));
  ExpectRefused(outcome, 1, "End");
}

TEST_F(FrameTagTest, ARepeatedMovedOrOmittedFrameIsRefused) {
  std::string first;
  // The header of the frame in whose place it comes, so that only the tag detects it.
  const auto repeated = [&](size_t number, std::string frame) {
    if (number == 1) first = frame;
    if (number == 2) frame.replace(kFrameHeaderBytes, std::string::npos, first, kFrameHeaderBytes);
    return frame;
  };
  ExpectRefused(ReadThrough(repeated), 1, "repeated");
  ExpectRefused(ReadThrough([&](size_t number, std::string frame) {
                  if (number == 1) first = frame;
                  return number == 2 ? first : frame;
                }),
                1, "repeated with its header");
  ExpectRefused(ReadThrough([&](size_t number, std::string frame) {
                  if (number == 1) first = frame;
                  if (number == 1) return std::string();
                  return number == 2 ? frame + first : frame;
                }),
                0, "moved");
  ExpectRefused(ReadThrough([&](size_t number, std::string frame) {
                  return number == 2 ? std::string() : frame;
                }),
                1, "omitted");
}

TEST_F(FrameTagTest, AFrameOfAnotherConnectionIsRefused) {
  std::vector<std::string> earlier;
  ReadThrough([&](size_t /*number*/, std::string frame) {
    earlier.push_back(frame);
    return frame;
  });
  ASSERT_EQ(earlier.size(), 4U);
  const Outcome outcome = ReadThrough([&](size_t number, std::string frame) {
    return number == 1 ? frame.substr(0, kFrameHeaderBytes) + earlier[1].substr(kFrameHeaderBytes)
                       : frame;
  });
  ExpectRefused(outcome, 0, "of another connection");
}

TEST_F(FrameTagTest, AConnectionThatIsCutShortIsNoEnd) {
  cut_at_ = 3;
  const Outcome outcome = ReadThrough(nullptr);
  EXPECT_EQ(outcome.status.code(), ErrorCode::kUnavailable) << outcome.status.ToString();
  EXPECT_TRUE(Same(outcome.bytes, std::span(object_.bytes()).first(2 * kMiB)));
}

TEST_F(FrameTagTest, AChangedRequestDoesNotReachTheSource) {
  const Outcome outcome = ReadThrough(nullptr, FrameTap::EditAt(0, [](std::string& frame) {
                                        frame[frame.size() - kFrameTagBytes - 1] ^= 1;
                                      }));
  EXPECT_EQ(outcome.status.code(), ErrorCode::kDataLoss) << outcome.status.ToString();
  EXPECT_EQ(rejected_, 1U);
  EXPECT_EQ(streams_, 0U);
}

TEST_F(FrameTagTest, EachDirectionHasItsOwnKey) {
  // The request comes back in place of the answer.
  std::string request;
  const Outcome outcome =
      ReadThrough([&](size_t number, std::string frame) { return number == 0 ? request : frame; },
                  [&](size_t /*number*/, std::string frame) { return request = frame; });
  ExpectRefused(outcome, 0, "reflected");
}

TEST_F(FrameTagTest, ManyStreamsUseOneConnection) {
  auto server = TcpPeerServer::Start(server_options_, source_, Clock::Real());
  auto transport = MakeTcpTransport(transport_options_, Clock::Real());
  source_.Refuse(2, NotFoundError("no such shard"));
  for (int round = 0; round < 20; ++round) {
    const auto got = Fetch(**transport, (*server)->address(), ShardRequest(1, 7, 100), Far());
    ASSERT_TRUE(got) << got.error().ToString();
    EXPECT_TRUE(Same(*got, std::span(object_.bytes()).subspan(7, 100)));
    EXPECT_EQ(Fetch(**transport, (*server)->address(), ShardRequest(2, 0, 1), Far()).error().code(),
              ErrorCode::kNotFound);
  }
  EXPECT_EQ((*server)->counters().connections, 1U);
}

TEST_F(FrameTagTest, ARefusalAfterTheHandshakeArrives) {
  revoked_.Replace({{{"agent", "client"}, Clock::Real().WallNanos() / 1'000'000'000}});
  EXPECT_THAT(ReadThrough(nullptr).status.message(),
              HasSubstr("the certificate of node 'client' is revoked"));
}

}  // namespace
}  // namespace holdfast::agent
