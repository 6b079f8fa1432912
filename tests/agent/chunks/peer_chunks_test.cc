#include "agent/chunks/peer_chunks.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "agent/peers/tcp_server.h"
#include "agent/peers/tcp_transport.h"
#include "base/random.h"
#include "storage/format/checksum.h"

namespace holdfast::agent {
namespace {

using testing::HasSubstr;

const ShardIdentity kShardId{"gpt", {Incarnation{2}, Step{7}}, Rank{1}, 4};
constexpr Incarnation kCurrent{3};

Result<std::unique_ptr<PeerTransport>> ConnectAs(const std::string& node) {
  TcpTransportOptions options;
  options.cluster = "test";
  options.node = node;
  return MakeTcpTransport(options, Clock::Real());
}

class SpanReader final : public PeerReader {
 public:
  explicit SpanReader(std::vector<std::byte> bytes) : bytes_(std::move(bytes)) {}
  Result<std::span<const std::byte>> Read(uint64_t offset, uint64_t bytes,
                                          Clock::TimePoint /*deadline*/) override {
    const auto rest =
        std::span<const std::byte>(bytes_).subspan(std::min<uint64_t>(offset, bytes_.size()));
    return rest.first(std::min<uint64_t>(bytes, rest.size()));
  }

 private:
  const std::vector<std::byte> bytes_;
};

/// A node with one shard. It checks no bytes.
class OneShard final : public PeerSource {
 public:
  explicit OneShard(uint64_t bytes) : image(bytes) {
    Random random(3);
    for (std::byte& byte : image) byte = static_cast<std::byte>(random.Next());
    seal.identity = kShardId;
    seal.image_bytes = bytes;
    seal.chunk_crcs = ChunkCrcs(image);
  }
  Result<std::unique_ptr<PeerReader>> Open(const PeerRequest& request) override {
    if (!refusal.ok()) return Fail(refusal);
    EXPECT_TRUE(request.sealed);
    EXPECT_EQ(request.incarnation, kCurrent);
    if (request.kind == PeerRequestKind::kSeal) {
      const std::string record = EncodeSeal(seal);
      const auto bytes = std::as_bytes(std::span(record));
      return std::make_unique<SpanReader>(std::vector<std::byte>(bytes.begin(), bytes.end()));
    }
    EXPECT_EQ(request.digest, seal.digest());
    return std::make_unique<SpanReader>(image);
  }

  std::vector<std::byte> image;
  ShardSeal seal;
  Status refusal;  // set before the first request
};

class PeerChunksTest : public testing::Test {
 protected:
  void Serve(TcpPeerServerOptions options, uint64_t bytes = 5 * kChunkBytes - 9) {
    shard_ = std::make_unique<OneShard>(bytes);
    options.cluster = "test";
    options.node = "n1";
    auto server = TcpPeerServer::Start(options, *shard_, Clock::Real());
    ASSERT_TRUE(server) << server.error().ToString();
    server_ = *std::move(server);
    auto transport = ConnectAs("n0");
    ASSERT_TRUE(transport);
    transport_ = *std::move(transport);
    seal_ = shard_->seal;
    bytes_.assign(bytes, std::byte{0});
    chunks_ = ChunksOf(seal_, 0, bytes_);
  }
  PeerChunks At(const std::string& address) {
    return {*transport_, Clock::Real(), {"n1", address, Tier::kMemory}, kShardId.key(), kCurrent};
  }
  PeerChunks Source() { return At(server_->address()); }

  std::unique_ptr<OneShard> shard_;
  std::unique_ptr<TcpPeerServer> server_;
  std::unique_ptr<PeerTransport> transport_;
  ShardSeal seal_;
  std::vector<std::byte> bytes_;
  std::vector<WantedChunk> chunks_;
};

TEST_F(PeerChunksTest, ASenderThatChecksNothingIsChecked) {
  ASSERT_NO_FATAL_FAILURE(Serve({}));
  shard_->image[2 * kChunkBytes] ^= std::byte{1};
  PeerChunks source = Source();
  const Status status = source.Read(seal_, chunks_);
  EXPECT_EQ(status.code(), ErrorCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("chunk 2 "));
  for (size_t i = 0; i < chunks_.size(); ++i) EXPECT_EQ(chunks_[i].done, i != 2) << i;
}

TEST_F(PeerChunksTest, AnObjectThatEndsTooEarlyIsDataLoss) {
  ASSERT_NO_FATAL_FAILURE(Serve({}));
  shard_->image.resize(3 * kChunkBytes + 10);
  PeerChunks source = Source();
  const Status status = source.Read(seal_, chunks_);
  EXPECT_EQ(status.code(), ErrorCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("ended the shard"));
  for (size_t i = 0; i < chunks_.size(); ++i) EXPECT_EQ(chunks_[i].done, i < 3) << i;
}

TEST_F(PeerChunksTest, ANodeThatIsLostInTheMiddleIsUnavailable) {
  TcpPeerServerOptions options;
  options.pace.rate_bytes_per_s = 2 << 20;
  options.pace.burst_bytes = 1 << 20;
  ASSERT_NO_FATAL_FAILURE(Serve(options));
  std::thread killer([this] {
    while (server_->counters().data_bytes < 2 * kChunkBytes) std::this_thread::yield();
    server_->Stop();
  });
  PeerChunks source = Source();
  const Status status = source.Read(seal_, chunks_);
  killer.join();
  EXPECT_EQ(status.code(), ErrorCode::kUnavailable) << status.ToString();
  EXPECT_TRUE(chunks_.front().done);
  EXPECT_FALSE(chunks_.back().done);
  for (const WantedChunk& chunk : chunks_) {
    EXPECT_TRUE(!chunk.done || IsChunk(seal_, chunk.index, chunk.into));
  }
}

TEST_F(PeerChunksTest, ARefusalIsPassedOn) {
  ASSERT_NO_FATAL_FAILURE(Serve({}));
  shard_->refusal = FencedError("incarnation 4 of gpt has started");
  PeerChunks source = Source();
  EXPECT_EQ(source.ReadSeal().error().code(), ErrorCode::kFenced);
  EXPECT_EQ(source.Read(seal_, chunks_).code(), ErrorCode::kFenced);
}

TEST_F(PeerChunksTest, AReadWaitsWhileTheNodeHasTooManyConnections) {
  TcpPeerServerOptions options;
  options.connections_max = 1;
  ASSERT_NO_FATAL_FAILURE(Serve(options));
  PeerRequest request;
  request.job = "gpt";
  request.version = kShardId.version;
  request.incarnation = kCurrent;
  request.rank = kShardId.rank;
  request.sealed = true;
  request.digest = seal_.digest();
  request.bytes = seal_.image_bytes;
  auto other = ConnectAs("n2");
  auto held =
      (*other)->Open(server_->address(), request, Clock::Real().Now() + std::chrono::seconds(10));
  ASSERT_TRUE(held) << held.error().ToString();
  std::thread releaser([&] {
    while (server_->counters().refused < 2) std::this_thread::yield();
    held->reset();
  });
  PeerChunks source = Source();
  const Status status = source.Read(seal_, chunks_);
  releaser.join();
  EXPECT_TRUE(status.ok()) << status.ToString();
  EXPECT_EQ(bytes_, shard_->image);
}

TEST_F(PeerChunksTest, IdleConnectionsOfOtherNodesDoNotKeepAReaderOut) {
  TcpPeerServerOptions options;
  options.connections_max = 2;
  ASSERT_NO_FATAL_FAILURE(Serve(options));
  std::vector<std::unique_ptr<PeerTransport>> others;
  for (int i = 0; i < 5; ++i) {
    others.push_back(*ConnectAs(fmt::format("n{}", 10 + i)));
    PeerChunks source(*others.back(), Clock::Real(), {"n1", server_->address(), Tier::kMemory},
                      kShardId.key(), kCurrent);
    const auto begin = Clock::Real().Now();
    const auto seal = source.ReadSeal();
    EXPECT_TRUE(seal) << seal.error().ToString();
    EXPECT_LT(Clock::Real().Now() - begin, std::chrono::seconds(10));
  }
}

TEST_F(PeerChunksTest, AnAddressThatOnlyItsOwnMachineReachesIsExplained) {
  ASSERT_NO_FATAL_FAILURE(Serve({}));
  const std::string address = server_->address();
  server_->Stop();
  const Status status = At(address).Read(seal_, chunks_);
  EXPECT_EQ(status.code(), ErrorCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("set peers.listen"));
  const Status none = At("").Read(seal_, chunks_);
  EXPECT_EQ(none.code(), ErrorCode::kUnavailable);
  EXPECT_THAT(none.message(), HasSubstr("no peer address"));
}

TEST_F(PeerChunksTest, ReadsShareThePaceOfAllTransfersOfTheNode) {
  TcpPeerServerOptions options;
  options.pace.rate_bytes_per_s = 8 << 20;
  options.pace.burst_bytes = 1 << 20;
  ASSERT_NO_FATAL_FAILURE(Serve(options, 6 * kChunkBytes));
  const auto begin = Clock::Real().Now();
  std::vector<std::byte> more(bytes_.size());
  std::vector<WantedChunk> others = ChunksOf(seal_, 0, more);
  std::thread second([&] { EXPECT_TRUE(Source().Read(seal_, others).ok()); });
  EXPECT_TRUE(Source().Read(seal_, chunks_).ok());
  second.join();
  // 12 MiB at 8 MiB/s, less the burst and one unit.
  EXPECT_GE(Clock::Real().Now() - begin, std::chrono::milliseconds(1'200));
  EXPECT_EQ(bytes_, shard_->image);
  EXPECT_EQ(more, shard_->image);
}

TEST_F(PeerChunksTest, ReadsYieldToCollectives) {
  TcpPeerServerOptions options;
  options.is_busy = [] { return true; };
  options.pace.yield_max = std::chrono::milliseconds(300);
  ASSERT_NO_FATAL_FAILURE(Serve(options));
  PeerChunks source = Source();
  EXPECT_TRUE(source.Read(seal_, chunks_).ok());
  EXPECT_GE(server_->yielded(), std::chrono::milliseconds(250));
}

}  // namespace
}  // namespace holdfast::agent
