// Tests the contract of transport and server over every kind of connection.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "agent/peers/sockets.h"
#include "tests/agent/peers/peers_test_util.h"

namespace holdfast::agent {
namespace {
using ::testing::HasSubstr;

constexpr uint64_t kMiB = 1 << 20;

struct Variant {
  const char* name;
  bool is_unix;
  bool secret;
  bool tls;
  bool encrypt = true;
};
void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name; }

class TransportTest : public ::testing::TestWithParam<Variant> {
 protected:
  void SetUp() override {
    if (GetParam().tls && !TestCertificates::Get().made()) {
      GTEST_SKIP() << "the openssl command, which makes the certificates, does not run";
    }
    server_options_.cluster = "test";
    server_options_.node = "server";
    server_options_.listen =
        GetParam().is_unix ? "unix:" + dir_.path() + "/peers.sock" : "127.0.0.1:0";
    if (GetParam().secret) {
      server_options_.secret_file = dir_.Write("secret", "0123456789abcdef0123456789abcdef");
    }
    if (GetParam().tls) server_options_.tls = TestCertificates::Get().Node();
    transport_options_.cluster = "test";
    transport_options_.node = "client";
    transport_options_.secret_file = server_options_.secret_file;
    transport_options_.tls = server_options_.tls;
    server_options_.encrypt = transport_options_.encrypt = GetParam().encrypt;
  }

  void Start() {
    auto server = TcpPeerServer::Start(server_options_, source_, Clock::Real());
    ASSERT_TRUE(server) << server.error().ToString();
    server_ = *std::move(server);
    address_ = server_->address();
    if (transport_ != nullptr) return;
    auto transport = MakeTcpTransport(transport_options_, Clock::Real());
    ASSERT_TRUE(transport) << transport.error().ToString();
    transport_ = *std::move(transport);
  }
  Result<std::unique_ptr<PeerStream>> Open(const PeerRequest& request) {
    return transport_->Open(address_, request, Far());
  }
  Result<std::vector<std::byte>> FetchAll(const PeerRequest& request,
                                          size_t room = kPeerUnitBytes) {
    return Fetch(*transport_, address_, request, Far(), room);
  }
  /// Checks that a complete small object can still be read.
  void ExpectServes() {
    const TestObject& object = source_.Add(999, 3 * kMiB / 2);
    const auto bytes = FetchAll(ShardRequest(999, 0, 2 * kMiB));
    ASSERT_TRUE(bytes) << bytes.error().ToString();
    EXPECT_TRUE(Same(*bytes, object.bytes()));
  }
  uint64_t connections() const { return server_->counters().connections; }

  TempDir dir_;
  TestSource source_;
  TcpPeerServerOptions server_options_;
  TcpTransportOptions transport_options_;
  std::string address_;
  std::unique_ptr<TcpPeerServer> server_;
  std::unique_ptr<PeerTransport> transport_;
};

INSTANTIATE_TEST_SUITE_P(Ways, TransportTest,
                         ::testing::Values(Variant{"tcp", false, false, false},
                                           Variant{"unix", true, false, false},
                                           Variant{"tcp_secret", false, true, false},
                                           Variant{"unix_secret", true, true, false},
                                           Variant{"tcp_tls", false, false, true},
                                           Variant{"tcp_secret_tls", false, true, true},
                                           Variant{"unix_secret_tls", true, true, true},
                                           Variant{"tcp_secret_tags", false, true, true, false}),
                         [](const auto& one) { return std::string(one.param.name); });

TEST_P(TransportTest, ExactBytesForManySizesAndOffsets) {
  Start();
  uint32_t rank = 0;
  for (uint64_t size :
       std::initializer_list<uint64_t>{0, 1, 31, 4096, kMiB - 1, kMiB, kMiB + 1, 3 * kMiB + 77}) {
    const TestObject& object = source_.Add(rank, size);
    for (uint64_t offset : std::initializer_list<uint64_t>{0, 1, size / 2, size == 0 ? 0 : size - 1,
                                                           size, size + 5, 1ULL << 40}) {
      for (uint64_t bytes :
           std::initializer_list<uint64_t>{0, 1, size / 3, size, size + 1, 1ULL << 50}) {
        const auto got = FetchAll(ShardRequest(rank, offset, bytes));
        ASSERT_TRUE(got) << got.error().ToString();
        ASSERT_TRUE(Same(*got, Expected(object, offset, bytes)))
            << size << " bytes, read " << bytes << " from " << offset;
      }
    }
    ++rank;
  }
  EXPECT_EQ(connections(), 1U) << "sequential streams share one connection";
}

TEST_P(TransportTest, UnitsAreAlignedToTheRequestAndFitSmallBuffers) {
  Start();
  const TestObject& object = source_.Add(1, 3 * kMiB);
  auto stream = Open(ShardRequest(1, 5, 2 * kMiB + 9));
  ASSERT_TRUE(stream) << stream.error().ToString();
  std::vector<std::byte> buffer(4 * kMiB);
  EXPECT_EQ((*stream)->Read(buffer, Far()).value(), kMiB);
  EXPECT_EQ((*stream)->Read(std::span(buffer).first(7), Far()).value(), 7U);
  EXPECT_EQ(std::memcmp(buffer.data(), object.bytes().data() + 5 + kMiB, 7), 0);
  EXPECT_EQ((*stream)->Read({}, Far()).error().code(), ErrorCode::kInvalidArgument)
      << "an error of the caller, without effect on the stream";
  EXPECT_EQ((*stream)->Read(buffer, Far()).value(), kMiB - 7);
  EXPECT_EQ((*stream)->Read(std::span(buffer).first(9), Far()).value(), 9U) << "the unit just fits";
  EXPECT_EQ((*stream)->Read(buffer, Far()).value(), 0U);
  EXPECT_EQ((*stream)->Read(buffer, Far()).value(), 0U) << "later reads return the end, too";
  for (size_t room : {1UL, 1000UL, kMiB - 1, 2 * kMiB}) {
    const uint64_t bytes = room == 1 ? 3000 : 3 * kMiB;
    const auto got = FetchAll(ShardRequest(1, 0, bytes), room);
    ASSERT_TRUE(got) << got.error().ToString();
    EXPECT_TRUE(Same(*got, Expected(object, 0, bytes))) << room;
  }
}

TEST_P(TransportTest, TheCompleteRequestReachesTheSource) {
  Start();
  PeerRequest request = ShardRequest(77, 12, 34);
  request.kind = PeerRequestKind::kDecode;
  request.stripe = 5;
  request.index = 6;
  request.group.assign(kPeerGroupBytesMax, 'g');
  source_.Add(77, 100);
  ASSERT_TRUE(FetchAll(request));
  EXPECT_EQ(source_.last_request(), request);
}

TEST_P(TransportTest, BytesAreSentAsTheyBecomeFinal) {
  Start();
  TestObject& object = source_.Add(1, 5 * kMiB);
  object.SetFinal(0);
  auto stream = Open(ShardRequest(1, 0, 5 * kMiB));
  ASSERT_TRUE(stream) << stream.error().ToString();
  std::vector<std::byte> unit(kMiB);
  std::vector<std::byte> all;
  for (uint64_t final = kMiB; final <= 5 * kMiB; final += kMiB) {
    object.SetFinal(final);
    ASSERT_EQ((*stream)->Read(unit, Far()).value_or(0), kMiB) << "the read does not wait for more";
    all.insert(all.end(), unit.begin(), unit.end());
  }
  EXPECT_EQ((*stream)->Read(unit, Far()).value_or(1), 0U);
  EXPECT_TRUE(Same(all, object.bytes()));
}

TEST_P(TransportTest, AFollowerKeepsUpWithAWriterOfOddSteps) {
  Start();
  TestObject& object = source_.Add(1, 4 * kMiB + 123);
  object.SetFinal(0);
  std::thread writer([&] {
    Random random(9);
    for (uint64_t final = 0; final < object.bytes().size();) {
      final += 1 + random.Below(100'000);
      object.SetFinal(final);
    }
    object.SetFinal(~uint64_t{0});
  });
  const auto got = FetchAll(ShardRequest(1, 0, 1ULL << 40));
  writer.join();
  ASSERT_TRUE(got) << got.error().ToString();
  EXPECT_TRUE(Same(*got, object.bytes()));
}

TEST_P(TransportTest, TheSourcesErrorsArriveWithCodeAndText) {
  Start();
  for (uint32_t number = 1; number <= 16; ++number) {
    const Status error(ErrorFromNumber(number), "reason " + std::to_string(number));
    source_.Refuse(100 + number, error);
    const auto refused = Open(ShardRequest(100 + number, 0, 10));
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error(), error);

    TestObject& object = source_.Add(number, 3 * kMiB);
    object.FailAt(2 * kMiB - 1, error);
    auto stream = Open(ShardRequest(number, 0, 3 * kMiB));
    ASSERT_TRUE(stream);
    std::vector<std::byte> unit(kMiB);
    EXPECT_EQ((*stream)->Read(unit, Far()).value_or(0), kMiB);
    for (int again = 0; again < 2; ++again) {
      const auto failed = (*stream)->Read(unit, Far());
      ASSERT_FALSE(failed);
      EXPECT_EQ(failed.error(), error) << "later reads fail, too";
    }
  }
  EXPECT_EQ(connections(), 1U) << "a source's error ends no connection";
  EXPECT_EQ(Open(ShardRequest(4711, 0, 10)).error(), NotFoundError("no such shard here"));
}

TEST_P(TransportTest, ASourceSlowerThanTheDeadlineEndsTheStream) {
  Start();
  TestObject& object = source_.Add(1, kMiB);
  object.SetFinal(kMiB / 2);
  auto stream = Open(ShardRequest(1, 0, kMiB));
  ASSERT_TRUE(stream);
  std::vector<std::byte> unit(kMiB);
  const auto start = Clock::Real().Now();
  const auto late = (*stream)->Read(unit, In(50));
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code(), ErrorCode::kDeadlineExceeded) << late.error().ToString();
  EXPECT_GE(Clock::Real().Now() - start, std::chrono::milliseconds(50));
  EXPECT_EQ((*stream)->Read(unit, Far()).error().code(), ErrorCode::kDeadlineExceeded)
      << "the stream is over";
  EXPECT_TRUE(object.AwaitCancelled()) << "the server detects that the client stopped waiting";
  object.SetFinal(kMiB);
  const auto got = FetchAll(ShardRequest(1, 0, kMiB));
  ASSERT_TRUE(got);
  EXPECT_TRUE(Same(*got, object.bytes())) << "a repeated request succeeds";
}

TEST_P(TransportTest, TheServersTimeoutForItsSourceHolds) {
  server_options_.timeouts.source = std::chrono::milliseconds(30);
  Start();
  source_.Add(1, kMiB).SetFinal(0);
  EXPECT_EQ(FetchAll(ShardRequest(1, 0, kMiB)).error(), DeadlineExceededError("not final yet"));
  ExpectServes();
}

TEST_P(TransportTest, CancelEndsAReadFromAnotherThread) {
  Start();
  TestObject& object = source_.Add(1, kMiB);
  object.SetFinal(0);
  auto stream = Open(ShardRequest(1, 0, kMiB));
  ASSERT_TRUE(stream);
  std::thread canceller([&] {
    EXPECT_TRUE(object.AwaitWaiting(1));
    (*stream)->Cancel();
  });
  std::vector<std::byte> unit(kMiB);
  const auto got = (*stream)->Read(unit, Far());
  canceller.join();
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().code(), ErrorCode::kCancelled) << got.error().ToString();
  EXPECT_EQ((*stream)->Read(unit, Far()).error().code(), ErrorCode::kCancelled);
  EXPECT_TRUE(object.AwaitCancelled());
  ExpectServes();
}

TEST_P(TransportTest, CancelBeforeAReadAndAfterTheEnd) {
  Start();
  source_.Add(1, 3 * kMiB);
  auto early = Open(ShardRequest(1, 0, 3 * kMiB));
  ASSERT_TRUE(early);
  (*early)->Cancel();
  std::vector<std::byte> unit(kMiB);
  EXPECT_EQ((*early)->Read(unit, Far()).error().code(), ErrorCode::kCancelled);
  auto late = Open(ShardRequest(1, 0, 3 * kMiB));
  ASSERT_TRUE(late);
  ASSERT_TRUE(ReadAll(**late, Far()));
  const uint64_t before = connections();
  (*late)->Cancel();  // its connection is already idle or used by another stream
  ExpectServes();
  EXPECT_EQ(connections(), before) << "that stream is not affected";
}

TEST_P(TransportTest, AnAbandonedStreamFreesItsReader) {
  Start();
  TestObject& object = source_.Add(1, kMiB);
  object.SetFinal(0);
  for (uint64_t round = 1; round <= 3; ++round) {
    auto stream = Open(ShardRequest(1, 0, kMiB));
    ASSERT_TRUE(stream);
    stream->reset();
    EXPECT_TRUE(object.AwaitCancelled(round));
  }
  ExpectServes();
}

TEST_P(TransportTest, ManyConcurrentStreams) {
  Start();
  constexpr uint32_t kObjects = 4;
  std::vector<const TestObject*> objects;
  for (uint32_t rank = 0; rank < kObjects; ++rank) {
    objects.push_back(&source_.Add(rank, (rank + 1) * kMiB + rank));
  }
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < 16; ++thread) {
    threads.emplace_back([&, thread] {
      Random random(thread);
      for (int round = 0; round < 6; ++round) {
        const auto rank = static_cast<uint32_t>(random.Below(kObjects));
        const uint64_t offset = random.Below(objects[rank]->bytes().size());
        const uint64_t bytes = 1 + random.Below(2 * kMiB);
        const auto got = FetchAll(ShardRequest(rank, offset, bytes), 1 + random.Below(2 * kMiB));
        ASSERT_TRUE(got) << got.error().ToString();
        EXPECT_TRUE(Same(*got, Expected(*objects[rank], offset, bytes))) << rank << " " << offset;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(server_->counters().streams, 16U * 6U);
  EXPECT_EQ(server_->counters().rejected, 0U);
}

TEST_P(TransportTest, ConnectionsOverTheLimitAreRefusedUntilOneIsFree) {
  server_options_.connections_max = 2;
  Start();
  TestObject& object = source_.Add(1, kMiB);
  object.SetFinal(0);
  auto first = Open(ShardRequest(1, 0, kMiB));
  auto second = Open(ShardRequest(1, 0, kMiB));
  ASSERT_TRUE(first && second);
  for (int i = 0; i < 20; ++i) {
    const auto third = Open(ShardRequest(1, 0, kMiB));
    ASSERT_FALSE(third);
    EXPECT_EQ(third.error().code(), ErrorCode::kResourceExhausted) << third.error().ToString();
    EXPECT_THAT(third.error().message(), HasSubstr("peers.connections_max"));
  }
  EXPECT_EQ(server_->counters().refused, 20U);
  object.SetFinal(kMiB);
  EXPECT_TRUE(Same(ReadAll(**first, Far()).value(), object.bytes()));
  ExpectServes();  // over the first one's connection
}

TEST_P(TransportTest, AStoppedServerEndsItsStreams) {
  Start();
  TestObject& object = source_.Add(1, 2 * kMiB);
  object.SetFinal(kMiB);
  std::vector<std::thread> readers;
  for (int i = 0; i < 4; ++i) {
    readers.emplace_back([&] {
      auto stream = Open(ShardRequest(1, 0, 2 * kMiB));
      ASSERT_TRUE(stream) << stream.error().ToString();
      std::vector<std::byte> unit(kMiB);
      EXPECT_EQ((*stream)->Read(unit, Far()).value_or(0), kMiB);
      const auto got = (*stream)->Read(unit, Far());
      ASSERT_FALSE(got);
      EXPECT_EQ(got.error().code(), ErrorCode::kUnavailable) << got.error().ToString();
    });
  }
  EXPECT_TRUE(object.AwaitWaiting(4));
  server_->Stop();
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(Open(ShardRequest(1, 0, 1)).error().code(), ErrorCode::kUnavailable);
  server_->Stop();  // a second call has no effect
}

TEST_P(TransportTest, ARestartedServerIsReachedAgainOverStaleConnections) {
  Start();
  for (int round = 0; round < 3; ++round) {
    ExpectServes();
    server_->Stop();
    server_options_.listen = address_;
    Start();
  }
  ExpectServes();
}

TEST_P(TransportTest, IdleConnectionsEndOnBothSides) {
  server_options_.timeouts.idle = std::chrono::milliseconds(1);
  transport_options_.idle_timeout = std::chrono::hours(1);
  Start();
  // When an idle connection is used again, the server has closed it or is about to close it.
  for (int round = 0; round < 5; ++round) ExpectServes();
  transport_options_.idle_timeout = std::chrono::nanoseconds(0);
  server_options_.timeouts.idle = std::chrono::hours(1);
  server_->Stop();
  transport_.reset();
  Start();
  for (int round = 0; round < 3; ++round) ExpectServes();
  EXPECT_EQ(connections(), 3U) << "no connection is kept";
}

TEST_P(TransportTest, DataIsPacedOverAllConnectionsTogether) {
  server_options_.pace = {.rate_bytes_per_s = 32 * kMiB, .burst_bytes = 1};
  Start();
  source_.Add(1, 4 * kMiB);
  const auto start = Clock::Real().Now();
  std::thread other([&] { EXPECT_TRUE(FetchAll(ShardRequest(1, 0, 4 * kMiB))); });
  EXPECT_TRUE(FetchAll(ShardRequest(1, 0, 4 * kMiB)));
  other.join();
  // Eight units, of which the first does not wait: 7/32 s.
  EXPECT_GE(Clock::Real().Now() - start, std::chrono::milliseconds(218));
}

TEST_P(TransportTest, AStreamThatWaitsForTheBusyRateContinuesWhenItEnds) {
  std::atomic<bool> busy{true};
  server_options_.pace = {
      .busy_rate_bytes_per_s = 1, .burst_bytes = 1, .yield_max = std::chrono::hours(1)};
  server_options_.is_busy = [&busy] { return busy.load(); };
  Start();
  const TestObject& object = source_.Add(1, 4 * kMiB);
  auto stream = Open(ShardRequest(1, 0, 4 * kMiB));
  ASSERT_TRUE(stream);
  std::vector<std::byte> unit(kMiB);
  EXPECT_EQ((*stream)->Read(unit, Far()).value_or(0), kMiB) << "the burst";
  std::thread training([&] {
    while (server_->yielded() == Clock::Duration::zero()) std::this_thread::yield();
    busy = false;
  });
  const auto rest = ReadAll(**stream, Far());  // would take an hour at the busy rate
  training.join();
  ASSERT_TRUE(rest) << rest.error().ToString();
  EXPECT_TRUE(Same(*rest, Expected(object, kMiB, 3 * kMiB)));
}

TEST_P(TransportTest, AStopDoesNotWaitForThePacer) {
  server_options_.pace = {.rate_bytes_per_s = 1, .burst_bytes = 1};
  Start();
  source_.Add(1, 4 * kMiB);
  auto stream = Open(ShardRequest(1, 0, 4 * kMiB));
  ASSERT_TRUE(stream);
  std::vector<std::byte> unit(kMiB);
  EXPECT_EQ((*stream)->Read(unit, Far()).value_or(0), kMiB);
  server_->Stop();
  EXPECT_EQ((*stream)->Read(unit, Far()).error().code(), ErrorCode::kUnavailable);
}

TEST_P(TransportTest, ASecondServerAtTheSameAddressIsRefused) {
  Start();
  TcpPeerServerOptions same = server_options_;
  same.listen = address_;
  const auto second = TcpPeerServer::Start(same, source_, Clock::Real());
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code(), ErrorCode::kAlreadyExists);
  EXPECT_THAT(second.error().message(), HasSubstr("peers.listen"));
  ExpectServes();
}

}  // namespace
}  // namespace holdfast::agent
