#include <cstring>

#include "agent/chunks/peer_chunks.h"
#include "agent/peers/tcp_server.h"
#include "agent/peers/tcp_transport.h"
#include "agent/pipeline/damage_tracker.h"
#include "agent/pipeline/local_shards.h"
#include "agent/pipeline/peer_source.h"
#include "storage/format/checksum.h"
#include "tests/agent/pipeline/parts.h"
#include "tests/storage/chunks/source_contract.h"

// The sources of shards on nodes: their memory and disks, read here and by a peer.

namespace holdfast::agent {
namespace {

const ShardIdentity kShardId{"job", {Incarnation{1}, Step{5}}, Rank{0}, 1};

Result<std::unique_ptr<PeerTransport>> ConnectAs(const std::string& node) {
  TcpTransportOptions options;
  options.cluster = "test";
  options.node = node;
  return MakeTcpTransport(options, Clock::Real());
}

Result<std::unique_ptr<TcpPeerServer>> ServeAt(PeerSource& source) {
  TcpPeerServerOptions options;
  options.cluster = "test";
  options.node = "node-0";
  return TcpPeerServer::Start(options, source, Clock::Real());
}

/// A node with one shard in memory and on disk, which also serves its peers.
class NodeWorld : public PartsTest, public SourceWorld {
 public:
  NodeWorld(Tier tier, bool at_peer, bool parity = true) : tier_(tier) {
    PartsTest::SetUp();
    damage_ = std::make_unique<DamageTracker>(*ranks_, *volume_, link_);
    shards_ = std::make_unique<LocalShards>(*ranks_, *volume_, *damage_);
    transport_ = *ConnectAs("node-1");
    peer_source_ = std::make_unique<NodePeerSource>("node-0", *ranks_, *shards_, *damage_,
                                                    *transport_, Clock::Real());
    server_ = *ServeAt(*peer_source_);
    image_ = MakeImage(kShardId, 4'500'000);
    seal_.identity = kShardId;
    seal_.image_bytes = image_.size();
    seal_.chunk_crcs = ChunkCrcs(image_);
    Store();
    // A damaged replica stays only while parity protects the version.
    if (parity) {
      const auto protecting = Reserve("job", ParityRank(0));
      Put(*protecting, kShardId.version);
    }
    const ShardKey key = kShardId.key();
    ShardKey other = key;
    other.rank = Rank{50};
    source_ = at_peer ? FromPeer(key, Incarnation{1}) : shards_->Source(key, tier_);
    unknown_ = at_peer ? FromPeer(other, Incarnation{1}) : shards_->Source(other, tier_);
  }
  ~NodeWorld() override {
    server_->Stop();
    rank_ = RankLease();
    PartsTest::TearDown();
  }
  void TestBody() override {}

  ChunkSource& source() override { return *source_; }
  ChunkSource& unknown() override { return *unknown_; }
  const ShardSeal& seal() override { return seal_; }
  const std::vector<std::byte>& image() override { return image_; }
  void Corrupt(uint64_t chunk) override {
    const uint64_t at = chunk * kChunkBytes + 17;
    if (tier_ == Tier::kMemory) {
      rank_->segment.slot(slot_)[at] ^= std::byte{1};
      return;
    }
    for (const std::string& path : disk_.Files()) {
      if (path.find(".safetensors") == std::string::npos) continue;
      ASSERT_TRUE(disk_.Damage(path, [at](auto& bytes) { bytes.at(at) ^= std::byte{1}; }).ok());
    }
  }
  void Remove() override {
    if (tier_ == Tier::kDisk) {
      ASSERT_TRUE(volume_->RemoveVersion("job", kShardId.version).ok());
    } else {
      ASSERT_TRUE(rank_->slots.pins().Discard(kShardId.version).ok());
    }
  }
  std::unique_ptr<ChunkSource> FromPeer(const ShardKey& key, Incarnation current) {
    return std::make_unique<PeerChunks>(
        *transport_, Clock::Real(), PeerPlace{"node-0", server_->address(), tier_}, key, current);
  }
  void Truncate(uint64_t bytes) {
    for (const std::string& path : disk_.Files()) {
      if (path.find(".safetensors") == std::string::npos) continue;
      ASSERT_TRUE(disk_.Damage(path, [bytes](auto& file) { file.resize(bytes); }).ok());
    }
  }
  NodePeerSource& peer_source() { return *peer_source_; }

 private:
  void Store() {
    auto rank = Reserve("job", Rank{0}, /*slot_bytes=*/6 << 20);
    ASSERT_TRUE(rank) << rank.error().ToString();
    rank_ = *rank;
    std::vector<FreedSlot> freed;
    const auto slot = rank_->slots.fills().LeaseToFill(kShardId.version, 1, image_.size(), &freed);
    ASSERT_TRUE(slot);
    slot_ = *slot;
    const std::span<std::byte> memory = rank_->segment.slot(slot_).first(image_.size());
    std::memcpy(memory.data(), image_.data(), image_.size());
    if (tier_ == Tier::kDisk) {
      auto writer = volume_->CreateShard(kShardId, memory);
      ASSERT_TRUE(writer) << writer.error().ToString();
      ASSERT_TRUE((*writer)->Advance(image_.size()).ok());
      ASSERT_TRUE((*writer)->Publish(seal_).ok());
      rank_->slots.fills().DropFilled(slot_);
      return;
    }
    ASSERT_TRUE(rank_->slots.fills().SealRestored(slot_, seal_).ok());
  }

  const Tier tier_;
  std::unique_ptr<DamageTracker> damage_;
  std::unique_ptr<LocalShards> shards_;
  std::unique_ptr<PeerTransport> transport_;
  std::unique_ptr<NodePeerSource> peer_source_;
  std::unique_ptr<TcpPeerServer> server_;
  RankLease rank_;
  uint32_t slot_ = 0;
  ShardSeal seal_;
  std::vector<std::byte> image_;
  std::unique_ptr<ChunkSource> source_;
  std::unique_ptr<ChunkSource> unknown_;
};

template <Tier tier, bool at_peer>
std::unique_ptr<SourceWorld> Make() {
  return std::make_unique<NodeWorld>(tier, at_peer);
}

INSTANTIATE_TEST_SUITE_P(Node, SourceContract,
                         testing::Values(SourceKind{"memory", &Make<Tier::kMemory, false>,
                                                    SourceCost::kMemory, "in this node's memory"},
                                         SourceKind{"disk", &Make<Tier::kDisk, false>,
                                                    SourceCost::kDisk, "on this node's disk"},
                                         SourceKind{"peer_memory", &Make<Tier::kMemory, true>,
                                                    SourceCost::kPeerMemory, "on node node-0"},
                                         SourceKind{"peer_disk", &Make<Tier::kDisk, true>,
                                                    SourceCost::kPeerDisk, "on node node-0"}),
                         [](const auto& kind) { return kind.param.name; });

TEST(NodeSources, APeerOfAnOlderIncarnationIsFenced) {
  NodeWorld world(Tier::kMemory, /*at_peer=*/true);
  world.peer_source().SetIncarnation("job", Incarnation{4});
  const auto older = world.FromPeer(kShardId.key(), Incarnation{3});
  EXPECT_EQ(older->ReadSeal().error().code(), ErrorCode::kFenced);
  std::vector<std::byte> bytes(kChunkBytes);
  WantedChunk chunk{0, bytes};
  EXPECT_EQ(older->Read(world.seal(), {&chunk, 1}).code(), ErrorCode::kFenced);
  EXPECT_TRUE(world.FromPeer(kShardId.key(), Incarnation{4})->ReadSeal());
}

TEST(NodeSources, APeerThatDropsADamagedReplicaIsDataLoss) {
  for (const Tier tier : {Tier::kMemory, Tier::kDisk}) {
    NodeWorld world(tier, /*at_peer=*/true, /*parity=*/false);
    world.Corrupt(1);
    std::vector<std::byte> bytes(world.image().size());
    std::vector<WantedChunk> chunks = ChunksOf(world.seal(), 0, bytes);
    const Status status = world.source().Read(world.seal(), chunks);
    EXPECT_EQ(status.code(), ErrorCode::kDataLoss) << status.ToString();
    EXPECT_THAT(status.message(), testing::HasSubstr("chunk 1 "));
    EXPECT_EQ(world.source().ReadSeal().error().code(), ErrorCode::kNotFound);
  }
}

TEST(NodeSources, ASealedRequestDoesNotWaitForASave) {
  NodeWorld world(Tier::kMemory, /*at_peer=*/true);
  ShardKey later = kShardId.key();
  later.version.step = Step{6};
  const auto begin = Clock::Real().Now();
  const auto seal = world.FromPeer(later, Incarnation{1})->ReadSeal();
  EXPECT_EQ(seal.error().code(), ErrorCode::kNotFound);
  EXPECT_LT(Clock::Real().Now() - begin, std::chrono::seconds(10));
}

TEST(NodeSources, ADigestOfAPeerDoesNotCondemnTheReplica) {
  NodeWorld world(Tier::kMemory, /*at_peer=*/true);
  ShardSeal other = world.seal();
  other.chunk_crcs[0] ^= 1;
  std::vector<std::byte> bytes(kChunkBytes);
  WantedChunk chunk{1, bytes};
  EXPECT_EQ(world.source().Read(other, {&chunk, 1}).code(), ErrorCode::kNotFound);
  EXPECT_TRUE(world.source().Read(world.seal(), {&chunk, 1}).ok());
}

TEST(NodeSources, ATruncatedFileIsAnError) {
  NodeWorld world(Tier::kDisk, /*at_peer=*/false);
  // Open files exist already.
  std::vector<std::byte> bytes(kChunkBytes);
  WantedChunk first{0, bytes};
  ASSERT_TRUE(world.source().Read(world.seal(), {&first, 1}).ok());
  world.Truncate(2 * kChunkBytes);
  WantedChunk last{4, std::span(bytes).first(ChunkBytes(world.seal(), 4))};
  const Status status = world.source().Read(world.seal(), {&last, 1});
  EXPECT_FALSE(status.ok());
  EXPECT_FALSE(last.done);
}

}  // namespace
}  // namespace holdfast::agent
