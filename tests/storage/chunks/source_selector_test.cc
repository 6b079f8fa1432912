#include "storage/chunks/source_selector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "storage/format/checksum.h"

namespace holdfast {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const ShardIdentity kIdentity{"job", {Incarnation{1}, Step{2}}, Rank{3}, 4};

/// A source that has `image` without the chunks in `bad`.
class FakeSource final : public ChunkSource {
 public:
  FakeSource(SourceCost cost, std::string where, const ShardSeal& sealed,
             const std::vector<std::byte>& image, std::vector<std::string>& calls)
      : cost_(cost), where_(std::move(where)), seal(sealed), image_(image), calls_(calls) {}

  SourceCost cost() const override { return cost_; }
  uint32_t load() const override { return reads; }
  std::string where() const override { return where_; }
  std::optional<Tier> local_tier() const override { return tier; }
  Result<ShardSeal> ReadSeal() override {
    calls_.push_back("seal " + where_);
    if (!error.ok()) return Fail(error);
    return seal;
  }
  Status Read(const ShardSeal& wanted, std::span<WantedChunk> chunks) override {
    calls_.push_back("read " + where_);
    if (!error.ok()) return error;
    Status damage;
    for (WantedChunk& chunk : chunks) {
      if (chunk.done) continue;
      if (bad.contains(chunk.index)) {
        damage = BadChunkError(wanted, chunk.index);
        continue;
      }
      std::copy_n(image_.begin() + static_cast<ptrdiff_t>(chunk.index * kChunkBytes),
                  chunk.into.size(), chunk.into.begin());
      chunk.done = true;
      ++read;
    }
    return damage;
  }

 private:
  const SourceCost cost_;
  const std::string where_;

 public:
  ShardSeal seal;
  std::optional<Tier> tier;
  std::set<uint64_t> bad;
  Status error;
  int read = 0;
  uint32_t reads = 0;  // in progress

 private:
  const std::vector<std::byte>& image_;
  std::vector<std::string>& calls_;
};

class Reports final : public DamageReporter {
 public:
  bool OnDamaged(const ShardKey& key, Tier tier, const Status& how) override {
    damaged.emplace_back(key, tier, how.message());
    return true;
  }
  void OnLost(const ShardKey& key, Tier tier, const Status& how) override {
    lost.emplace_back(key, tier, how.message());
  }
  std::vector<std::tuple<ShardKey, Tier, std::string>> damaged;
  std::vector<std::tuple<ShardKey, Tier, std::string>> lost;
};

class SelectorTest : public testing::Test {
 protected:
  SelectorTest() : image_(5 * kChunkBytes + 100) {
    for (size_t i = 0; i < image_.size(); ++i) image_[i] = static_cast<std::byte>(i * 7 + i / 256);
    seal_.identity = kIdentity;
    seal_.image_bytes = image_.size();
    seal_.chunk_crcs = ChunkCrcs(image_);
    bytes_.resize(image_.size());
    chunks_ = ChunksOf(seal_, 0, bytes_);
  }
  FakeSource& Add(SourceCost cost, const std::string& where) {
    auto source = std::make_unique<FakeSource>(cost, where, seal_, image_, calls_);
    FakeSource& added = *source;
    sources_.push_back(std::move(source));
    return added;
  }
  SourceSelector Selector(uint64_t digest = 0) {
    return {kIdentity.key(), digest, sources_, reports_};
  }

  std::vector<std::byte> image_;
  ShardSeal seal_;
  std::vector<std::byte> bytes_;
  std::vector<WantedChunk> chunks_;
  std::vector<std::string> calls_;
  SourceList sources_;
  Reports reports_;
};

TEST_F(SelectorTest, TheCheapestSourceIsReadAlone) {
  Add(SourceCost::kDecode, "decoded");
  Add(SourceCost::kPeerMemory, "peer");
  Add(SourceCost::kMemory, "memory");
  Add(SourceCost::kDisk, "disk");
  SourceSelector selector = Selector(seal_.digest());
  ASSERT_TRUE(selector.ReadSeal());
  EXPECT_EQ(selector.Read(seal_, chunks_), Status::Ok());
  EXPECT_EQ(bytes_, image_);
  EXPECT_THAT(calls_, ElementsAre("seal memory", "read memory"));
  EXPECT_FALSE(selector.any_failed());
}

TEST_F(SelectorTest, OfEquallyCheapSourcesTheLeastLoadedIsRead) {
  Add(SourceCost::kPeerMemory, "busy").reads = 2;
  Add(SourceCost::kPeerMemory, "idle").reads = 1;
  Add(SourceCost::kPeerDisk, "disk");
  SourceSelector selector = Selector(seal_.digest());
  EXPECT_EQ(selector.Read(seal_, chunks_), Status::Ok());
  EXPECT_THAT(calls_, ElementsAre("read idle"));
}

TEST_F(SelectorTest, EachChunkIsReadFromTheCheapestSourceThatHasItIntact) {
  FakeSource& memory = Add(SourceCost::kMemory, "memory");
  FakeSource& peer = Add(SourceCost::kPeerMemory, "peer");
  FakeSource& decoded = Add(SourceCost::kDecode, "decoded");
  memory.bad = {1, 4};
  peer.bad = {4};
  SourceSelector selector = Selector();
  EXPECT_EQ(selector.Read(seal_, chunks_), Status::Ok());
  EXPECT_EQ(bytes_, image_);
  EXPECT_EQ(memory.read, 4);
  EXPECT_EQ(peer.read, 1);
  EXPECT_EQ(decoded.read, 1);
  EXPECT_TRUE(selector.any_failed());
  // A bad chunk is no reason to avoid the others.
  calls_.clear();
  std::vector<WantedChunk> again = ChunksOf(seal_, 0, std::span(bytes_).first(kChunkBytes));
  EXPECT_EQ(selector.Read(seal_, again), Status::Ok());
  EXPECT_THAT(calls_, ElementsAre("read memory"));
}

TEST_F(SelectorTest, ASourceThatDoesNotAnswerIsAskedOnce) {
  FakeSource& peer = Add(SourceCost::kPeerMemory, "on node n2");
  Add(SourceCost::kDisk, "disk");
  peer.error = UnavailableError("no route");
  SourceSelector selector = Selector();
  ASSERT_TRUE(selector.ReadSeal());
  for (int i = 0; i < 3; ++i) {
    std::vector<WantedChunk> chunks = ChunksOf(seal_, 0, bytes_);
    EXPECT_EQ(selector.Read(seal_, chunks), Status::Ok());
  }
  EXPECT_EQ(std::count(calls_.begin(), calls_.end(), "seal on node n2"), 1);
  EXPECT_EQ(std::count(calls_.begin(), calls_.end(), "read on node n2"), 0);
  calls_.clear();
  SourceSelector without_seal = Selector();
  for (int i = 0; i < 3; ++i) {
    std::vector<WantedChunk> chunks = ChunksOf(seal_, 0, bytes_);
    EXPECT_EQ(without_seal.Read(seal_, chunks), Status::Ok());
  }
  EXPECT_EQ(std::count(calls_.begin(), calls_.end(), "read on node n2"), 1);
}

TEST_F(SelectorTest, DamageOfThisNodeIsReportedOnce) {
  FakeSource& memory = Add(SourceCost::kMemory, "in memory");
  memory.tier = Tier::kMemory;
  memory.bad = {0, 3};
  FakeSource& peer = Add(SourceCost::kPeerMemory, "peer");
  peer.bad = {0};
  Add(SourceCost::kDecode, "decoded");
  SourceSelector selector = Selector();
  for (int i = 0; i < 3; ++i) {
    std::vector<WantedChunk> chunks = ChunksOf(seal_, 0, bytes_);
    EXPECT_EQ(selector.Read(seal_, chunks), Status::Ok());
  }
  ASSERT_EQ(reports_.damaged.size(), 1U) << "a peer tracks its own damage";
  const auto& [key, tier, text] = reports_.damaged[0];
  EXPECT_EQ(key, kIdentity.key());
  EXPECT_EQ(tier, Tier::kMemory);
  EXPECT_THAT(text, HasSubstr("in memory: job/1-2/rank-3: chunk"));
  EXPECT_TRUE(reports_.lost.empty());
}

TEST_F(SelectorTest, AReplicaWithOtherBytesThanTheCommittedOnesIsLost) {
  FakeSource& disk = Add(SourceCost::kDisk, "on disk");
  disk.tier = Tier::kDisk;
  disk.seal.chunk_crcs[0] ^= 1;
  FakeSource& peer = Add(SourceCost::kPeerDisk, "peer");
  peer.seal.identity.rank = Rank{1};
  Add(SourceCost::kDecode, "decoded");
  SourceSelector selector = Selector(seal_.digest());
  const auto seal = selector.ReadSeal();
  ASSERT_TRUE(seal) << seal.error().ToString();
  EXPECT_EQ(*seal, seal_);
  EXPECT_EQ(selector.Read(seal_, chunks_), Status::Ok());
  EXPECT_THAT(calls_, ElementsAre("seal on disk", "seal peer", "seal decoded", "read decoded"));
  ASSERT_EQ(reports_.lost.size(), 1U);
  EXPECT_THAT(std::get<2>(reports_.lost[0]), HasSubstr("the committed one"));
  EXPECT_TRUE(reports_.damaged.empty());
}

TEST_F(SelectorTest, TheErrorNamesEverySource) {
  Add(SourceCost::kDisk, "on this node's disk").error = NotFoundError("no seal");
  Add(SourceCost::kMemory, "in this node's memory").bad = {2};
  Add(SourceCost::kPeerMemory, "on node n2").error = UnavailableError("no route");
  Add(SourceCost::kDecode, "decoded by its group").bad = {2};
  const Status status = Selector().Read(seal_, chunks_);
  EXPECT_EQ(status.code(), ErrorCode::kDataLoss) << "the code of the last source";
  for (const char* text :
       {"in this node's memory: job/1-2/rank-3: chunk 2 ", "on this node's disk: no seal",
        "on node n2: no route", "decoded by its group: job/1-2/rank-3: chunk 2 "}) {
    EXPECT_THAT(status.message(), HasSubstr(text));
  }
  EXPECT_EQ(calls_.size(), 4U);
}

TEST_F(SelectorTest, NoSourceIsUnavailable) {
  SourceSelector selector = Selector();
  EXPECT_EQ(selector.ReadSeal().error().code(), ErrorCode::kUnavailable);
  EXPECT_EQ(selector.Read(seal_, chunks_).code(), ErrorCode::kUnavailable);
}

TEST_F(SelectorTest, NothingIsAskedWhileTheAgentStops) {
  Add(SourceCost::kMemory, "memory");
  SourceSelector selector = Selector();
  selector.SetStopping([] { return true; });
  EXPECT_EQ(selector.ReadSeal().error().code(), ErrorCode::kCancelled);
  EXPECT_EQ(selector.Read(seal_, chunks_).code(), ErrorCode::kCancelled);
  EXPECT_TRUE(calls_.empty());
}

}  // namespace
}  // namespace holdfast
