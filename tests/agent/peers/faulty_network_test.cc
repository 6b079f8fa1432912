// Streams over a network that corrupts and loses data: every byte that a stream returns is correct,
// and once the network works again, so do all reads.

#include <gtest/gtest.h>

#include <thread>

#include "tests/agent/peers/faulty_proxy.h"
#include "tests/agent/peers/peers_test_util.h"

namespace holdfast::agent {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint32_t kObjects = 3;
constexpr int kThreads = 4;
constexpr int kReads = 30;
constexpr int kPatienceMs = 400;

class FaultyNetworkTest : public ::testing::TestWithParam<uint64_t> {
 protected:
  void SetUp() override {
    TcpPeerServerOptions options;
    options.cluster = "test";
    options.node = "server";
    options.secret_file = dir_.Write("secret", std::string(32, 's'));
    for (uint32_t rank = 0; rank < kObjects; ++rank) {
      objects_.push_back(&source_.Add(rank, rank * kMiB + 1000));
    }
    auto server = TcpPeerServer::Start(options, source_, Clock::Real());
    ASSERT_TRUE(server) << server.error().ToString();
    server_ = *std::move(server);
    proxy_ = std::make_unique<FaultyProxy>(server_->address(), GetParam());
    TcpTransportOptions client;
    client.cluster = "test";
    client.node = "client";
    client.secret_file = options.secret_file;
    transport_ = *MakeTcpTransport(client, Clock::Real());
  }

  /// Reads a range and compares each unit. Returns the error that ended the stream, if any.
  Status ReadChecked(const TestObject& object, const PeerRequest& request, size_t room,
                     int patience_ms) {
    HOLDFAST_ASSIGN_OR_RETURN(auto stream,
                              transport_->Open(proxy_->address(), request, In(patience_ms)));
    const std::vector<std::byte> expected = Expected(object, request.offset, request.bytes);
    std::vector<std::byte> unit(room);
    for (size_t have = 0;;) {
      HOLDFAST_ASSIGN_OR_RETURN(const size_t got, stream->Read(unit, In(patience_ms)));
      if (got == 0) {
        EXPECT_EQ(have, expected.size()) << "the object ends here";
        return Status::Ok();
      }
      EXPECT_LE(have + got, expected.size());
      if (have + got > expected.size()) return InternalError("too long");
      EXPECT_EQ(std::memcmp(unit.data(), expected.data() + have, got), 0) << "at " << have;
      have += got;
    }
  }

  Status ReadRandomRange(Random& random, int patience_ms) {
    const auto rank = static_cast<uint32_t>(random.Below(kObjects));
    const uint64_t size = objects_[rank]->bytes().size();
    const PeerRequest request = ShardRequest(rank, random.Below(size), 1 + random.Below(2 * size));
    const size_t room = random.OneIn(3) ? 1 + random.Below(kMiB) : kMiB;
    return ReadChecked(*objects_[rank], request, room, patience_ms);
  }

  TempDir dir_;
  TestSource source_;
  std::vector<const TestObject*> objects_;
  std::unique_ptr<TcpPeerServer> server_;
  std::unique_ptr<FaultyProxy> proxy_;
  std::unique_ptr<PeerTransport> transport_;
};

INSTANTIATE_TEST_SUITE_P(Seeds, FaultyNetworkTest, ::testing::Range<uint64_t>(1, 7));

TEST_P(FaultyNetworkTest, NoWrongByteIsAcceptedAndARepairedNetworkServes) {
  std::atomic<int> good{0};
  std::atomic<int> failed{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      Random random(GetParam() * 1000 + static_cast<uint64_t>(thread));
      for (int i = 0; i < kReads; ++i) {
        const Status status = ReadRandomRange(random, kPatienceMs);
        if (status.ok()) {
          ++good;
        } else {
          ++failed;
          EXPECT_TRUE(status.code() == ErrorCode::kDataLoss ||
                      status.code() == ErrorCode::kUnavailable ||
                      status.code() == ErrorCode::kUnsupported ||
                      status.code() == ErrorCode::kDeadlineExceeded)
              << status.ToString();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(proxy_->faults(), 0U);
  EXPECT_GT(good, 0);
  EXPECT_GT(failed, 0);

  proxy_->SetFaulty(false);
  Random random(GetParam());
  for (int i = 0; i < 20; ++i) {
    const Status status = ReadRandomRange(random, 30'000);
    EXPECT_EQ(status, Status::Ok());
  }
}

}  // namespace
}  // namespace holdfast::agent
