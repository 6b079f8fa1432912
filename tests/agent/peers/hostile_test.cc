// Clients and servers that violate the protocol: no wrong data is accepted, no large allocation is
// made for them, and the server continues.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <new>
#include <thread>

#include "tests/agent/peers/peers_test_util.h"
#include "tests/agent/peers/raw_peer.h"

namespace {
// The largest allocation since the test began.
std::atomic<size_t> largest_allocation{0};

void* Allocate(size_t bytes) {
  size_t seen = largest_allocation.load();
  while (bytes > seen && !largest_allocation.compare_exchange_weak(seen, bytes)) {
  }
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) std::abort();
  return memory;
}
}  // namespace

void* operator new(size_t bytes) { return Allocate(bytes); }
void* operator new[](size_t bytes) { return Allocate(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t /*bytes*/) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t /*bytes*/) noexcept { std::free(memory); }

namespace holdfast::agent {
namespace {
using ::testing::HasSubstr;

constexpr uint64_t kMiB = 1 << 20;

class HostileClientTest : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.cluster = "test";
    options_.node = "server";
    options_.timeouts.frame = std::chrono::seconds(20);
    object_ = &source_.Add(1, 3 * kMiB);
    TcpTransportOptions client;
    client.cluster = "test";
    client.node = "client";
    transport_ = *MakeTcpTransport(client, Clock::Real());
    Start();
    largest_allocation = 0;
  }
  void Start() {
    server_.reset();
    auto server = TcpPeerServer::Start(options_, source_, Clock::Real());
    ASSERT_TRUE(server) << server.error().ToString();
    server_ = *std::move(server);
  }
  void TearDown() override {
    const size_t largest = largest_allocation;
    EXPECT_LE(largest, 1'300'000U) << "at most one frame of a request";
    for (int i = 0; i < 3; ++i) {
      const auto got = Fetch(*transport_, server_->address(), ShardRequest(1, 0, 3 * kMiB), Far());
      ASSERT_TRUE(got) << got.error().ToString();
      EXPECT_TRUE(Same(*got, object_->bytes())) << "the server still serves";
    }
  }
  RawPeer Dial() { return RawPeer::Dial(server_->address()); }
  RawPeer DialProved() { return RawPeer::DialProved(server_->address(), "test"); }

  TestSource source_;
  TestObject* object_ = nullptr;
  TcpPeerServerOptions options_;
  std::unique_ptr<TcpPeerServer> server_;
  std::unique_ptr<PeerTransport> transport_;
};

TEST_F(HostileClientTest, ARefusalOfAnotherProtocolNamesIt) {
  for (int protocol : {0, 1, 255}) {
    RawPeer peer = Dial();
    ASSERT_TRUE(peer.Send(HeaderBytes(static_cast<uint8_t>(protocol), 1, 40)));
    const Status refusal = peer.Refusal();
    EXPECT_EQ(refusal.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(refusal.message(), HasSubstr("protocol " + std::to_string(protocol)));
  }
}

TEST_F(HostileClientTest, HugeLengthsAreRefusedBeforeMemoryIsAllocated) {
  for (uint32_t bytes : {513U, 1U << 30, ~0U}) {
    RawPeer peer = Dial();
    ASSERT_TRUE(peer.Send(HeaderBytes(kPeerProtocol, 1, bytes)));
    EXPECT_EQ(peer.Refusal().code(), ErrorCode::kDataLoss) << bytes;
  }
  for (uint32_t bytes : {(1U << 20) + (64U << 10) + 1, 1U << 30, ~0U}) {
    RawPeer peer = DialProved();
    ASSERT_TRUE(peer.Send(HeaderBytes(kPeerProtocol, 16, bytes)));
    EXPECT_EQ(peer.Refusal().code(), ErrorCode::kDataLoss) << bytes;
  }
}

TEST_F(HostileClientTest, ARequestBeforeTheHandshakeIsRefused) {
  for (uint8_t kind : {3, 4, 16, 32, 33, 34}) {
    RawPeer peer = Dial();
    ASSERT_TRUE(peer.Send(HeaderBytes(kPeerProtocol, kind, 0)));
    const Status refusal = peer.Refusal();
    EXPECT_EQ(refusal.code(), ErrorCode::kDataLoss);
    EXPECT_THAT(refusal.message(), HasSubstr("where Hello is expected"));
  }
}

TEST_F(HostileClientTest, UnknownAndMisplacedKindsAreRefused) {
  for (int kind = 0; kind < 256; ++kind) {
    if (kind == 16) continue;
    RawPeer peer = DialProved();
    ASSERT_TRUE(peer.Send(HeaderBytes(kPeerProtocol, static_cast<uint8_t>(kind), 0)));
    const Status refusal = peer.Refusal();
    EXPECT_TRUE(refusal.code() == ErrorCode::kUnsupported || refusal.code() == ErrorCode::kDataLoss)
        << kind << " " << refusal.ToString();
  }
}

TEST_F(HostileClientTest, DamagedHeadersAndPayloadsAreRefused) {
  const std::string good =
      FrameBytes(FrameKind::kRequest, EncodeRequest({7, ShardRequest(1, 0, 100)}));
  for (size_t at : {0UL, 4UL, 5UL, 8UL, 12UL, 20UL, 28UL, 31UL, 32UL, 40UL, good.size() - 1}) {
    RawPeer peer = DialProved();
    std::string bad = good;
    bad[at] ^= 0x10;
    ASSERT_TRUE(peer.Send(bad));
    EXPECT_EQ(peer.Refusal().code(), ErrorCode::kDataLoss) << at;
  }
  EXPECT_EQ(server_->counters().streams, 0U);
}

TEST_F(HostileClientTest, MalformedRequestsAreRefused) {
  std::vector<std::string> payloads = {"", "x", std::string(1'000'000, '\xff')};
  const std::string good = EncodeRequest({7, ShardRequest(1, 0, 100)});
  payloads.push_back(good + "x");
  payloads.push_back(good.substr(0, good.size() - 1));
  std::string group = good;
  group.replace(group.size() - 4, 4, "\xff\xff\xff\xff");
  payloads.push_back(group);
  PeerRequest bad = ShardRequest(1, ~uint64_t{0}, 2);
  payloads.push_back(EncodeRequest({7, bad}));
  bad = ShardRequest(1, 0, 1);
  bad.job = "../../etc";
  payloads.push_back(EncodeRequest({7, bad}));
  for (const std::string& payload : payloads) {
    RawPeer peer = DialProved();
    ASSERT_TRUE(peer.Send(FrameBytes(FrameKind::kRequest, payload)));
    const ErrorCode code = peer.Refusal().code();
    EXPECT_TRUE(code == ErrorCode::kDataLoss || code == ErrorCode::kInvalidArgument);
  }
  EXPECT_EQ(server_->counters().streams, 0U);
}

TEST_F(HostileClientTest, GarbageIsRefused) {
  Random random(4);
  for (int round = 0; round < 50; ++round) {
    RawPeer peer = random.OneIn(2) ? Dial() : DialProved();
    std::string garbage(32 + random.Below(5000), '\0');
    for (char& c : garbage) c = static_cast<char>(random.Next());
    peer.Send(garbage);  // may be incomplete: the server closes after the first header
    EXPECT_EQ(peer.Refusal().code(), ErrorCode::kDataLoss);
  }
}

TEST_F(HostileClientTest, AnIncompleteFrameHoldsAConnectionOnlyForTheTimeout) {
  options_.timeouts.frame = std::chrono::milliseconds(500);
  options_.timeouts.idle = std::chrono::hours(1);
  options_.connections_max = 3;
  Start();
  const std::string request =
      FrameBytes(FrameKind::kRequest, EncodeRequest({7, ShardRequest(1, 0, 100)}));
  RawPeer silent = Dial();
  RawPeer half_hello = Dial();
  ASSERT_TRUE(half_hello.Send(HeaderBytes(kPeerProtocol, 1, 100).substr(0, 20)));
  EXPECT_EQ(silent.Refusal().code(), ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(half_hello.Refusal().code(), ErrorCode::kDeadlineExceeded);
  for (size_t bytes : {1UL, 31UL, 32UL, request.size() - 1}) {
    RawPeer peer = DialProved();
    ASSERT_TRUE(peer.Send(request.substr(0, bytes)));
    EXPECT_EQ(peer.Refusal().code(), ErrorCode::kDeadlineExceeded) << bytes;
  }
}

TEST_F(HostileClientTest, AClientThatDoesNotReadIsDroppedInTime) {
  options_.timeouts.send = std::chrono::milliseconds(500);
  Start();
  source_.Add(2, 64 * kMiB);
  largest_allocation = 0;
  RawPeer peer = DialProved();
  ASSERT_TRUE(peer.Send(
      FrameBytes(FrameKind::kRequest, EncodeRequest({7, ShardRequest(2, 0, 64 * kMiB)}))));
  // The client reads nothing until the server's timeout: the connection closes within the object.
  pollfd closed{.fd = peer.fd(), .events = POLLRDHUP, .revents = 0};
  ASSERT_EQ(::poll(&closed, 1, 30'000), 1);
  EXPECT_LT(server_->counters().data_bytes, 64 * kMiB);
}

TEST_F(HostileClientTest, ClientsMayDisconnectAnywhere) {
  const std::string request =
      FrameBytes(FrameKind::kRequest, EncodeRequest({7, ShardRequest(1, 0, 3 * kMiB)}));
  for (size_t bytes : {0UL, 10UL, 32UL, 60UL, request.size()}) {
    for (size_t reads : {0UL, 1UL, 40UL, 100'000UL}) {
      RawPeer peer = DialProved();
      ASSERT_TRUE(peer.Send(request.substr(0, bytes)));
      if (bytes == request.size()) {
        EXPECT_EQ(peer.Receive(reads).size(), reads);
      }
    }
  }
}

TEST_F(HostileClientTest, DataSentDuringAStreamIsReadAfterIt) {
  RawPeer peer = DialProved();
  const std::string request =
      FrameBytes(FrameKind::kRequest, EncodeRequest({7, ShardRequest(1, 0, 10)}));
  ASSERT_TRUE(peer.Send(request + request + "garbage that is longer than a header"));
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(peer.ReceiveFrame().first, FrameKind::kAccepted);
    EXPECT_EQ(peer.ReceiveFrame().first, FrameKind::kData);
  }
  EXPECT_EQ(peer.Refusal().code(), ErrorCode::kDataLoss);
}

// Servers that violate the protocol, with a correct client.

void ShakeHandsRaw(RawPeer& peer) {
  peer.ReceiveFrame();
  Introduction self;
  self.cluster = "test";
  self.node = "raw";
  peer.Send(FrameBytes(FrameKind::kChallenge, EncodeIntroduction(self)));
  peer.ReceiveFrame();
  peer.Send(FrameBytes(FrameKind::kWelcome, ""));
}

/// Returns the result of a client that requests `bytes` bytes from a server that sends
/// `answer(stamp)`.
Result<std::vector<std::byte>> FetchFrom(
    uint64_t bytes, const std::function<std::string(const FrameStamp&)>& answer) {
  ScriptedServer server([&](RawPeer& peer) {
    ShakeHandsRaw(peer);
    const std::string request = peer.ReceiveFrame().second;
    peer.Send(answer(FrameStamp(std::as_bytes(std::span(request)))));
    peer.Receive(1);  // until the client disconnects
  });
  TcpTransportOptions options;
  options.cluster = "test";
  options.node = "client";
  auto transport = *MakeTcpTransport(options, Clock::Real());
  return Fetch(*transport, server.address(), ShardRequest(1, 0, bytes), Far());
}

std::string Accepted(const FrameStamp& stamp) {
  return FrameBytes(FrameKind::kAccepted, "", stamp.At(0));
}

TEST(HostileServerTest, CorrectAnswersAreAccepted) {
  const auto got = FetchFrom(10, [](const FrameStamp& stamp) {
    return Accepted(stamp) + FrameBytes(FrameKind::kData, "hello", stamp.At(0)) +
           FrameBytes(FrameKind::kData, "wor", stamp.At(5)) +
           FrameBytes(FrameKind::kEnd, "", stamp.At(8));
  });
  ASSERT_TRUE(got) << got.error().ToString();
  EXPECT_EQ(Text(*got), "hellowor");
}

TEST(HostileServerTest, MisplacedFramesAreDataLoss) {
  const std::string payload = EncodeRequest({99, ShardRequest(1, 0, 10)});
  const FrameStamp other(std::as_bytes(std::span(payload)));
  using Answer = std::function<std::string(const FrameStamp&)>;
  const std::pair<const char*, Answer> answers[] = {
      {"without a stamp",
       [](const FrameStamp& s) { return Accepted(s) + FrameBytes(FrameKind::kData, "hello"); }},
      {"at another position",
       [](const FrameStamp& s) {
         return Accepted(s) + FrameBytes(FrameKind::kData, "hello", s.At(5));
       }},
      {"of another stream for the same bytes",
       [&](const FrameStamp& s) {
         return Accepted(s) + FrameBytes(FrameKind::kData, "hello", other.At(0));
       }},
      {"twice",
       [](const FrameStamp& s) {
         const std::string data = FrameBytes(FrameKind::kData, "hello", s.At(0));
         return Accepted(s) + data + data;
       }},
      {"an end too early",
       [](const FrameStamp& s) {
         return Accepted(s) + FrameBytes(FrameKind::kData, "hello", s.At(0)) +
                FrameBytes(FrameKind::kEnd, "", s.At(0));
       }},
      {"more than requested",
       [](const FrameStamp& s) {
         return Accepted(s) + FrameBytes(FrameKind::kData, "hello world", s.At(0));
       }},
      {"empty data",
       [](const FrameStamp& s) { return Accepted(s) + FrameBytes(FrameKind::kData, "", s.At(0)); }},
      {"accepted twice", [](const FrameStamp& s) { return Accepted(s) + Accepted(s); }},
      {"data first",
       [](const FrameStamp& s) { return FrameBytes(FrameKind::kData, "hello", s.At(0)); }},
      {"accepted for another stream", [&](const FrameStamp&) { return Accepted(other); }},
      {"an error of another stream",
       [&](const FrameStamp&) {
         return FrameBytes(FrameKind::kError, EncodeError(NotFoundError("x")), other.At(0));
       }},
      {"an error with code OK",
       [](const FrameStamp& s) {
         return FrameBytes(FrameKind::kError, std::string("\0ok", 3), s.At(0));
       }},
      {"garbage", [](const FrameStamp&) { return std::string(100, 'H'); }},
  };
  for (const auto& [name, answer] : answers) {
    const auto got = FetchFrom(10, answer);
    ASSERT_FALSE(got) << name;
    EXPECT_EQ(got.error().code(), ErrorCode::kDataLoss) << name << ": " << got.error().ToString();
  }
}

TEST(HostileServerTest, HugeFramesAreRefusedBeforeMemoryIsAllocated) {
  largest_allocation = 0;
  for (uint8_t kind : {33, 35}) {
    const auto got = FetchFrom(1ULL << 40, [&](const FrameStamp& s) {
      return Accepted(s) + HeaderBytes(kPeerProtocol, kind, ~0U);
    });
    EXPECT_EQ(got.error().code(), ErrorCode::kDataLoss);
  }
  EXPECT_LE(largest_allocation, kMiB) << "only the reader's buffer";
}

TEST(HostileServerTest, AServerThatStopsAnywhereIsUnavailable) {
  for (size_t bytes : {0UL, 20UL, 32UL, 50UL, 66UL}) {
    ScriptedServer server([&](RawPeer& peer) {
      ShakeHandsRaw(peer);
      const std::string request = peer.ReceiveFrame().second;
      const FrameStamp stamp(std::as_bytes(std::span(request)));
      peer.Send(
          (Accepted(stamp) + FrameBytes(FrameKind::kData, "hello", stamp.At(0))).substr(0, bytes));
    });
    TcpTransportOptions options;
    options.cluster = "test";
    options.node = "client";
    auto transport = *MakeTcpTransport(options, Clock::Real());
    const auto got = Fetch(*transport, server.address(), ShardRequest(1, 0, 10), Far());
    ASSERT_FALSE(got) << bytes;
    EXPECT_EQ(got.error().code(), ErrorCode::kUnavailable) << got.error().ToString();
  }
}

TEST(HostileServerTest, ASilentServerCostsNoMoreThanTheDeadline) {
  ScriptedServer server([](RawPeer& peer) { peer.Receive(1 << 20); });
  TcpTransportOptions options;
  options.cluster = "test";
  options.node = "client";
  auto transport = *MakeTcpTransport(options, Clock::Real());
  const auto got = transport->Open(server.address(), ShardRequest(1, 0, 10), In(50));
  EXPECT_EQ(got.error().code(), ErrorCode::kDeadlineExceeded) << got.error().ToString();
}

TEST(HostileServerTest, BadRequestsDoNotLeaveTheClient) {
  ScriptedServer server([](RawPeer&) { ADD_FAILURE() << "the client must not connect"; });
  TcpTransportOptions options;
  options.cluster = "test";
  options.node = "client";
  auto transport = *MakeTcpTransport(options, Clock::Real());
  PeerRequest request = ShardRequest(1, 0, 10);
  request.job = "a/b";
  EXPECT_EQ(transport->Open(server.address(), request, Far()).error().code(),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(transport->Open("nowhere", ShardRequest(1, 0, 1), Far()).error().code(),
            ErrorCode::kInvalidArgument);
  const auto far = transport->Open("10.0.0.1:7072", ShardRequest(1, 0, 1), Far());
  EXPECT_EQ(far.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(far.error().message(), HasSubstr("set tls.ca"));
}

}  // namespace
}  // namespace holdfast::agent
