#include "agent/pipeline/committed_indexes.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <future>

#include "agent/pipeline/damage_tracker.h"
#include "base/clock.h"
#include "storage/format/version_index.h"
#include "storage/volume/aligned_buffer.h"
#include "tests/agent/pipeline/parts.h"

namespace holdfast::agent {
namespace {
VersionId AtStep(uint64_t step) { return {Incarnation{1}, Step{step}}; }

class CommittedIndexesTest : public PartsTest {
 protected:
  void SetUp() override {
    PartsTest::SetUp();
    damage_ = std::make_unique<DamageTracker>(*ranks_, *volume_, link_);
    shards_ = std::make_unique<LocalShards>(*ranks_, *volume_, *damage_);
    indexes_ = std::make_unique<NodeIndexes>(*shards_, *damage_);
    committed_ = std::make_unique<CommittedIndexes>(*volume_, *indexes_, background_, clock_);
  }
  void TearDown() override {
    background_.Stop();
    committed_.reset();
    indexes_.reset();
    shards_.reset();
    damage_.reset();
    PartsTest::TearDown();
  }
  /// Publishes the shards of ranks 1 and 3 of 4 on disk.
  void Publish(VersionId version) {
    for (const uint32_t rank : {3U, 1U}) {
      const ShardIdentity identity{"job", version, Rank{rank}, 4};
      const std::vector<std::byte> image = MakeImage(identity, 1000 + rank);
      auto memory = *AlignedBuffer::Allocate(image.size());
      std::ranges::copy(image, memory.span().begin());
      ShardSeal seal;
      seal.identity = identity;
      seal.image_bytes = image.size();
      seal.chunk_crcs = ChunkCrcs(image);
      auto writer = volume_->CreateShard(identity, memory.span().first(image.size()));
      ASSERT_TRUE(writer) << writer.error().ToString();
      ASSERT_TRUE((*writer)->Advance(image.size()).ok());
      ASSERT_TRUE((*writer)->Publish(seal).ok());
      digests_[{version, rank}] = seal.digest();
    }
  }
  void Commit(std::optional<VersionId> version) {
    JobState state;
    state.job = "job";
    state.committed[Tier::kDisk] = version;
    committed_->SetJobState(state);
  }
  /// Ticks, and waits for the work that has begun.
  void Tick() {
    committed_->Tick();
    std::promise<void> done;
    ASSERT_TRUE(background_.Post([&done] { done.set_value(); }));
    done.get_future().wait();
  }
  /// Returns how many shards the index has that a node requests which restores.
  uint64_t Requested(VersionId version) {
    const std::vector<IndexedShard> wanted = {{Rank{1}, digests_[{version, 1}]},
                                              {Rank{3}, digests_[{version, 3}]}};
    const auto bytes = indexes_->OfNode({"job", version, 4, Incarnation{2}}, wanted);
    EXPECT_TRUE(bytes) << bytes.error().ToString();
    const auto index = VersionIndex::Open(std::as_bytes(std::span(**bytes)));
    EXPECT_TRUE(index) << index.error().ToString();
    EXPECT_TRUE(index->Verify().ok());
    return index->shards();
  }

  ManualClock clock_;
  Executor background_{1, Clock::Real()};
  std::map<std::pair<VersionId, uint32_t>, uint64_t> digests_;
  std::unique_ptr<DamageTracker> damage_;
  std::unique_ptr<LocalShards> shards_;
  std::unique_ptr<NodeIndexes> indexes_;
  std::unique_ptr<CommittedIndexes> committed_;
};

// The files are removed after the commit: a request then gets the index of the commit.
TEST_F(CommittedIndexesTest, TheIndexIsMadeAtTheCommitAndReadByTheRestore) {
  ASSERT_NO_FATAL_FAILURE(Publish(AtStep(10)));
  Commit(AtStep(10));
  ASSERT_NO_FATAL_FAILURE(Tick());
  ASSERT_TRUE(volume_->RemoveVersion("job", AtStep(10)).ok());
  EXPECT_EQ(Requested(AtStep(10)), 2U);
}

TEST_F(CommittedIndexesTest, WithoutACommitNothingIsMade) {
  ASSERT_NO_FATAL_FAILURE(Publish(AtStep(10)));
  Commit(std::nullopt);
  ASSERT_NO_FATAL_FAILURE(Tick());
  ASSERT_TRUE(volume_->RemoveVersion("job", AtStep(10)).ok());
  EXPECT_EQ(Requested(AtStep(10)), 0U);
}

TEST_F(CommittedIndexesTest, AJobThatWritesEveryStepGetsTheIndexOfTheNewestOne) {
  for (const uint64_t step : {10, 11, 12}) ASSERT_NO_FATAL_FAILURE(Publish(AtStep(step)));
  Commit(AtStep(10));
  ASSERT_NO_FATAL_FAILURE(Tick());
  Commit(AtStep(11));
  ASSERT_NO_FATAL_FAILURE(Tick());
  ASSERT_TRUE(volume_->RemoveVersion("job", AtStep(11)).ok());
  EXPECT_EQ(Requested(AtStep(11)), 0U) << "within the pause, nothing was made";
  Commit(AtStep(12));
  clock_.Advance(std::chrono::seconds(1));
  ASSERT_NO_FATAL_FAILURE(Tick());
  for (const uint64_t step : {10, 12}) {
    ASSERT_TRUE(volume_->RemoveVersion("job", AtStep(step)).ok());
  }
  EXPECT_EQ(Requested(AtStep(12)), 2U);
  EXPECT_EQ(Requested(AtStep(10)), 0U) << "one index for each job is kept";
}

TEST_F(CommittedIndexesTest, AnIndexThatLacksAShardIsNotKept) {
  ASSERT_NO_FATAL_FAILURE(Publish(AtStep(10)));
  for (const std::string& path : disk_.Files()) {
    if (path.find("rank-3.safetensors") == std::string::npos) continue;
    ASSERT_TRUE(disk_.Damage(path, [](auto& file) { file[20] ^= std::byte{1}; }).ok());
  }
  Commit(AtStep(10));
  ASSERT_NO_FATAL_FAILURE(Tick());
  EXPECT_EQ(volume_->List().size(), 2U) << "the scrubber and the readers of shards report damage";
  ASSERT_TRUE(volume_->RemoveVersion("job", AtStep(10)).ok());
  EXPECT_EQ(Requested(AtStep(10)), 0U);
}

// Versions of two lives of a store may have one number. The shard on disk does not show which image
// was committed.
TEST_F(CommittedIndexesTest, AnotherImageInMemoryStays) {
  const RankLease rank = *Reserve("job", Rank{3});
  Put(rank, AtStep(10));
  ASSERT_NO_FATAL_FAILURE(Publish(AtStep(10)));
  Commit(AtStep(10));
  ASSERT_NO_FATAL_FAILURE(Tick());
  EXPECT_TRUE(rank->slots.view().Has(AtStep(10)));
  ASSERT_TRUE(volume_->RemoveVersion("job", AtStep(10)).ok());
  EXPECT_EQ(Requested(AtStep(10)), 2U);
}

}  // namespace
}  // namespace holdfast::agent
