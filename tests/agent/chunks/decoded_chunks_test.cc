#include "agent/chunks/decoded_chunks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/agent/parity/group_fixture.h"
#include "tests/storage/chunks/source_contract.h"

namespace holdfast::agent {
namespace {

/// Two nodes with one shard each. The shard of the first is decoded at the second.
class DecodedWorld final : public SourceWorld {
 public:
  DecodedWorld() {
    Random random(7);
    const uint64_t slot = 8 << 20;
    for (uint32_t i = 0; i < 2; ++i) {
      const std::string name = fmt::format("n{}", i);
      network_.nodes[name] = std::make_unique<TestNode>(name, network_);
      network_.sent[name] = 0;
      network_.nodes[name]->shards[Rank{i}] = MakeShard(Rank{i}, 5 * kChunkBytes - 77, random);
      members_.push_back({name, name, 10 + i, {{Rank{i}, slot}}, false, false});
    }
    const GroupPlan plan = *GroupPlan::Make(members_, 1);
    std::vector<std::thread> builders;
    for (uint32_t i = 0; i < 2; ++i) {
      builders.emplace_back([this, i, &plan] { Build(plan, i); });
    }
    for (std::thread& builder : builders) builder.join();
    members_[0].address.clear();
    members_[1].has_data = members_[1].has_parity = true;
    const auto left = std::make_shared<GroupPlan>(*GroupPlan::Make(members_, 1));
    shard_ = network_.nodes["n0"]->shards[Rank{0}];
    const GroupReach reach{"n1", *network_.nodes["n1"], network_, Clock::Real()};
    source_ =
        std::make_unique<DecodedChunks>(reach, left, shard_.seal.identity.key(), Incarnation{3});
    unknown_ = std::make_unique<DecodedChunks>(reach, left, ShardKey{"gpt", kVersion, Rank{50}},
                                               Incarnation{3});
    network_.nodes["n0"] = nullptr;
  }

  ChunkSource& source() override { return *source_; }
  ChunkSource& unknown() override { return *unknown_; }
  const ShardSeal& seal() override { return shard_.seal; }
  const std::vector<std::byte>& image() override { return shard_.bytes; }
  /// With one data member, a row of parity has the bytes of the lost shard.
  void Corrupt(uint64_t chunk) override {
    auto& parity = network_.nodes["n1"]->shards.at(ParityRank(11)).bytes;
    const auto lost = std::span(shard_.bytes).subspan(chunk * kChunkBytes, 4096);
    auto found = std::search(parity.begin(), parity.end(), lost.begin(), lost.end());
    ASSERT_NE(found, parity.end());
    *found ^= std::byte{1};
  }
  void Remove() override { network_.nodes["n1"]->shards.clear(); }
  bool knows_image() const override { return false; }

 private:
  void Build(const GroupPlan& plan, uint32_t position) {
    TestNode& node = *network_.nodes.at(plan.members()[position].node);
    const Rank rank = ParityRank(10 + position);
    const auto image = ParityImage::Make(plan, position, {"gpt", kVersion, rank, kWorld});
    ASSERT_TRUE(image);
    Shard parity;
    parity.bytes.resize(image->image_bytes());
    Cancellation cancellation;
    const GroupReach reach{plan.members()[position].node, node, network_, Clock::Real()};
    auto seal = BuildParity(reach.To(plan, "gpt", kVersion, kVersion.incarnation, cancellation),
                            kWorld, node.rows, parity.bytes, Clock::Real(),
                            Clock::Real().Now() + std::chrono::seconds(30));
    ASSERT_TRUE(seal) << seal.error().ToString();
    parity.seal = *seal;
    built_[position] = std::move(parity);
    ++done_;
    while (done_ < 2) std::this_thread::yield();
    node.shards[rank] = built_[position];
  }

  Network network_;
  std::vector<PlanMember> members_;
  std::array<Shard, 2> built_;
  std::atomic<int> done_{0};
  Shard shard_;
  std::unique_ptr<DecodedChunks> source_;
  std::unique_ptr<DecodedChunks> unknown_;
};

INSTANTIATE_TEST_SUITE_P(Decoded, SourceContract,
                         testing::Values(SourceKind{"decoded",
                                                    []() -> std::unique_ptr<SourceWorld> {
                                                      return std::make_unique<DecodedWorld>();
                                                    },
                                                    SourceCost::kDecode, "decoded by its group"}),
                         [](const auto& kind) { return kind.param.name; });

TEST(DecodedChunks, OnlyTheWantedChunksAreTransferred) {
  DecodedWorld world;
  std::vector<std::byte> bytes(kChunkBytes);
  WantedChunk chunk{3, bytes};
  ASSERT_TRUE(world.source().Read(world.seal(), {&chunk, 1}).ok());
  EXPECT_EQ(static_cast<DecodedChunks&>(world.source()).decoded_bytes(), kChunkBytes);
}

}  // namespace
}  // namespace holdfast::agent
