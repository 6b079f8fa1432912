#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "storage/chunks/chunk_source.h"

// What every ChunkSource must do. Each test program instantiates the suite with its sources.

namespace holdfast {

/// One replica of a shard of at least four chunks, and a source that reads it.
class SourceWorld {
 public:
  virtual ~SourceWorld() = default;
  virtual ChunkSource& source() = 0;
  /// Returns a source of a shard that the place does not have: of the same version, of rank 50.
  virtual ChunkSource& unknown() = 0;
  virtual const ShardSeal& seal() = 0;
  virtual const std::vector<std::byte>& image() = 0;
  /// Damages a byte of the chunk.
  virtual void Corrupt(uint64_t chunk) = 0;
  /// Takes the replica away.
  virtual void Remove() = 0;
  /// Returns whether the source knows the image that its place has.
  virtual bool knows_image() const { return true; }
};

struct SourceKind {
  std::string name;
  std::unique_ptr<SourceWorld> (*make)();
  SourceCost cost = SourceCost::kMemory;
  std::string where;
};

class SourceContract : public testing::TestWithParam<SourceKind> {
 protected:
  void SetUp() override {
    world_ = GetParam().make();
    ASSERT_NE(world_, nullptr);
    bytes_.assign(world_->image().size(), std::byte{0xEE});
    chunks_ = ChunksOf(world_->seal(), 0, bytes_);
    ASSERT_GE(chunks_.size(), 4U);
  }
  bool IsGood(size_t i) const {
    const auto& chunk = chunks_[i];
    const auto original = std::span(world_->image()).subspan(chunk.index * kChunkBytes);
    return std::equal(chunk.into.begin(), chunk.into.end(), original.begin());
  }
  Status Read() { return world_->source().Read(world_->seal(), chunks_); }

  std::unique_ptr<SourceWorld> world_;
  std::vector<std::byte> bytes_;
  std::vector<WantedChunk> chunks_;
};

TEST_P(SourceContract, ReadsTheSealAndAllBytes) {
  EXPECT_EQ(world_->source().cost(), GetParam().cost);
  EXPECT_EQ(world_->source().where(), GetParam().where);
  const auto seal = world_->source().ReadSeal();
  ASSERT_TRUE(seal) << seal.error().ToString();
  EXPECT_EQ(seal->identity, world_->seal().identity);
  EXPECT_TRUE(SameImage(*seal, world_->seal()));
  const Status status = Read();
  ASSERT_TRUE(status.ok()) << status.ToString();
  EXPECT_EQ(bytes_, world_->image());
  for (const WantedChunk& chunk : chunks_) EXPECT_TRUE(chunk.done);
}

TEST_P(SourceContract, ReadsOnlyTheWantedChunks) {
  std::vector<WantedChunk> some = {chunks_[0], chunks_[2], chunks_.back()};
  some[0].done = true;
  const Status status = world_->source().Read(world_->seal(), some);
  ASSERT_TRUE(status.ok()) << status.ToString();
  EXPECT_FALSE(IsGood(0)) << "a chunk that is done is not read again";
  EXPECT_FALSE(IsGood(1));
  EXPECT_TRUE(IsGood(2));
  EXPECT_TRUE(IsGood(chunks_.size() - 1));
}

TEST_P(SourceContract, ABadChunkIsNamedAndTheOthersAreRead) {
  world_->Corrupt(1);
  const Status status = Read();
  EXPECT_EQ(status.code(), ErrorCode::kDataLoss) << status.ToString();
  EXPECT_THAT(status.message(), testing::HasSubstr("chunk 1 (image bytes 1048576-2097151)"));
  for (size_t i = 0; i < chunks_.size(); ++i) {
    EXPECT_EQ(chunks_[i].done, i != 1) << i;
    EXPECT_EQ(IsGood(i), i != 1) << i;
  }
}

TEST_P(SourceContract, AChunkThatTheImageLacksIsRefused) {
  WantedChunk beyond{chunks_.size(), chunks_[0].into};
  EXPECT_EQ(world_->source().Read(world_->seal(), {&beyond, 1}).code(),
            ErrorCode::kInvalidArgument);
  WantedChunk large{chunks_.size() - 1, chunks_[0].into};
  EXPECT_EQ(world_->source().Read(world_->seal(), {&large, 1}).code(), ErrorCode::kInvalidArgument);
}

TEST_P(SourceContract, AnUnknownShardIsAnError) {
  const auto seal = world_->unknown().ReadSeal();
  ASSERT_FALSE(seal);
  EXPECT_NE(seal.error().code(), ErrorCode::kInternal) << seal.error().ToString();
  ShardSeal other = world_->seal();
  other.identity.rank = Rank{50};
  EXPECT_FALSE(world_->unknown().Read(other, chunks_).ok());
  EXPECT_EQ(world_->source().Read(other, chunks_).code(), ErrorCode::kInvalidArgument);
  for (const WantedChunk& chunk : chunks_) EXPECT_FALSE(chunk.done);
}

TEST_P(SourceContract, AnotherImageOfTheShardIsNotRead) {
  ShardSeal other = world_->seal();
  for (uint32_t& crc : other.chunk_crcs) crc ^= 1;
  const Status status = world_->source().Read(other, chunks_);
  EXPECT_EQ(status.code(), world_->knows_image() ? ErrorCode::kNotFound : ErrorCode::kDataLoss)
      << status.ToString();
  for (const WantedChunk& chunk : chunks_) EXPECT_FALSE(chunk.done);
}

TEST_P(SourceContract, AReplicaThatGoesAwayGivesNoWrongBytes) {
  WantedChunk first = chunks_[0];
  ASSERT_TRUE(world_->source().Read(world_->seal(), {&first, 1}).ok());
  world_->Remove();
  const auto begin = Clock::Real().Now();
  const Status status = Read();
  EXPECT_LT(Clock::Real().Now() - begin, std::chrono::seconds(30));
  bool all = true;
  for (size_t i = 0; i < chunks_.size(); ++i) {
    all = all && chunks_[i].done;
    EXPECT_TRUE(!chunks_[i].done || IsGood(i)) << i;
  }
  // Open files stay readable after their removal.
  EXPECT_EQ(status.ok(), all) << status.ToString();
  EXPECT_TRUE(!status.ok() || GetParam().cost == SourceCost::kDisk);
}

}  // namespace holdfast
