// Lost shards of a parity group are decoded byte for byte, for any lost members. Shards that cannot
// be decoded are named.

#include "storage/parity/group_decoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "base/random.h"
#include "tests/storage/parity/parity_group.h"

namespace holdfast {
namespace {

using ::testing::HasSubstr;

const VersionId kVersion{Incarnation{3}, Step{120}};
constexpr uint64_t kFarAway = ~uint64_t{0};

/// The shards of a group except the lost ones; single chunks may be corrupt.
class SomeImages : public ShardImages {
 public:
  explicit SomeImages(const ParityGroup& group) : group_(group) {}

  std::set<Rank> lost;
  std::map<Rank, std::set<uint64_t>> bad_chunks;

  Result<ShardSeal> Seal(Rank shard) override {
    if (lost.count(shard) != 0) return Fail(NotFoundError(ShardName(shard)));
    return group_.shards.at(shard).seal;
  }
  Status Read(Rank shard, uint64_t offset, std::span<std::byte> into) override {
    EXPECT_EQ(lost.count(shard), 0U);
    const auto image = group_.shards.at(shard).image;
    if (offset > image.size() || into.size() > image.size() - offset) {
      return DataLossError("past the end");
    }
    for (uint64_t chunk = offset / kChunkBytes; chunk * kChunkBytes < offset + into.size();
         ++chunk) {
      if (bad_chunks[shard].count(chunk) != 0) return DataLossError("a bad chunk");
    }
    std::copy_n(image.begin() + static_cast<ptrdiff_t>(offset), into.size(), into.begin());
    return Status::Ok();
  }

 private:
  const ParityGroup& group_;
};

class GroupDecoderTest : public ::testing::Test {
 protected:
  /// `nodes` nodes with two ranks of different sizes each.
  void Make(uint32_t nodes, uint32_t parity, uint64_t bytes = (5 << 20) / 2 + 777) {
    Random random(7);
    std::vector<std::vector<Rank>> members;
    for (uint32_t node = 0; node < nodes; ++node) {
      members.emplace_back();
      for (uint32_t i = 0; i < 2; ++i) {
        const Rank rank{2 * node + i};
        std::vector<std::byte> image(bytes + random.Below(bytes));
        for (std::byte& byte : image) byte = static_cast<std::byte>(random.Next());
        group_.Add({"lm", kVersion, rank, 2 * nodes}, image);
        members.back().push_back(rank);
      }
    }
    group_.AddParity("lm", kVersion, 2 * nodes, parity, members);
  }
  void Lose(SomeImages& images, uint32_t node) {
    for (const Rank shard : group_.members[node]) images.lost.insert(shard);
  }
  Rank AnyParity(const SomeImages& images) {
    for (const auto& member : group_.members) {
      if (images.lost.count(member.back()) == 0) return member.back();
    }
    return Rank{};
  }
  void ExpectDecoded(SomeImages& images, Rank rank) {
    auto decoder = GroupDecoder::Open(images, "lm", kVersion, AnyParity(images));
    ASSERT_TRUE(decoder.has_value()) << decoder.error().ToString();
    ASSERT_TRUE((*decoder)->CheckDecodable(rank).ok());
    const ParityGroup::Shard& shard = group_.shards.at(rank);
    EXPECT_EQ((*decoder)->Seal(rank)->digest(), shard.seal.digest());
    std::vector<std::byte> decoded(shard.image.size());
    const Status status = (*decoder)->Decode(rank, 0, decoded);
    ASSERT_TRUE(status.ok()) << status.ToString();
    EXPECT_TRUE(std::equal(decoded.begin(), decoded.end(), shard.image.begin()))
        << ShardName(rank) << " differs";
  }

  ParityGroup group_;
};

TEST_F(GroupDecoderTest, EverySingleLostNodeOfFour) {
  Make(4, 1);
  for (uint32_t node = 0; node < 4; ++node) {
    SCOPED_TRACE(node);
    SomeImages images(group_);
    Lose(images, node);
    for (const Rank rank : {Rank{2 * node}, Rank{2 * node + 1}}) ExpectDecoded(images, rank);
  }
}

TEST_F(GroupDecoderTest, EveryPairOfEightWithTwoParities) {
  Make(8, 2, 300'000);
  for (uint32_t a = 0; a < 8; ++a) {
    for (uint32_t b = a + 1; b < 8; ++b) {
      SCOPED_TRACE(std::to_string(a) + " and " + std::to_string(b));
      SomeImages images(group_);
      Lose(images, a);
      Lose(images, b);
      ExpectDecoded(images, Rank{2 * a});
      ExpectDecoded(images, Rank{2 * b + 1});
    }
  }
}

TEST_F(GroupDecoderTest, DecodesAnyPartOfAShard) {
  Make(4, 1);
  SomeImages images(group_);
  Lose(images, 2);
  auto decoder = GroupDecoder::Open(images, "lm", kVersion, ParityRank(0));
  ASSERT_TRUE(decoder.has_value());
  const auto& image = group_.shards.at(Rank{4}).image;
  for (uint64_t offset : {uint64_t{0}, kChunkBytes, 2 * kChunkBytes}) {
    std::vector<std::byte> part(std::min<uint64_t>(kChunkBytes, image.size() - offset));
    ASSERT_TRUE((*decoder)->Decode(Rank{4}, offset, part).ok());
    EXPECT_TRUE(
        std::equal(part.begin(), part.end(), image.begin() + static_cast<ptrdiff_t>(offset)));
  }
}

TEST_F(GroupDecoderTest, OneRankOfANodeIsDecodedWithTheOtherPresent) {
  Make(4, 1);
  SomeImages images(group_);
  images.lost.insert(Rank{3});
  ExpectDecoded(images, Rank{3});
}

TEST_F(GroupDecoderTest, TooManyLostShardsAreNamed) {
  Make(4, 1);
  SomeImages images(group_);
  Lose(images, 1);
  Lose(images, 3);
  auto decoder = GroupDecoder::Open(images, "lm", kVersion, ParityRank(0));
  ASSERT_TRUE(decoder.has_value());
  const Status status = (*decoder)->CheckDecodable(Rank{2});
  EXPECT_EQ(status.code(), ErrorCode::kDataLoss);
  EXPECT_THAT(status.message(),
              HasSubstr("rank-2, rank-3, parity-1, rank-6, rank-7, parity-3 are missing"));
  EXPECT_THAT(status.message(), HasSubstr("of 4 nodes survives the loss of 1"));
  std::vector<std::byte> chunk(kChunkBytes);
  EXPECT_EQ((*decoder)->Decode(Rank{2}, 0, chunk).code(), ErrorCode::kDataLoss);
}

TEST_F(GroupDecoderTest, CorruptChunksAtDifferentPositionsAreTolerated) {
  Make(4, 2);
  SomeImages images(group_);
  Lose(images, 1);
  // With two parities and one lost node, one other shard may be corrupt at each position.
  images.bad_chunks[Rank{0}] = {0};
  images.bad_chunks[Rank{4}] = {2};
  images.bad_chunks[ParityRank(3)] = {1};
  ExpectDecoded(images, Rank{2});
  ExpectDecoded(images, Rank{3});
}

TEST_F(GroupDecoderTest, ACorruptChunkThatIsNeededIsAnError) {
  Make(4, 1);
  SomeImages images(group_);
  Lose(images, 1);
  for (uint64_t chunk = 0; chunk < 3; ++chunk) images.bad_chunks[Rank{0}].insert(chunk);
  auto decoder = GroupDecoder::Open(images, "lm", kVersion, ParityRank(2));
  ASSERT_TRUE(decoder.has_value());
  std::vector<std::byte> image(group_.shards.at(Rank{2}).image.size());
  const Status status = (*decoder)->Decode(Rank{2}, 0, image);
  EXPECT_EQ(status.code(), ErrorCode::kDataLoss);
}

TEST_F(GroupDecoderTest, AShardWithAnotherDigestCountsAsMissing) {
  Make(4, 1);
  group_.shards.at(Rank{0}).seal.chunk_crcs[0] ^= 1;  // as if an earlier life had committed it
  SomeImages images(group_);
  Lose(images, 3);
  auto decoder = GroupDecoder::Open(images, "lm", kVersion, ParityRank(1));
  ASSERT_TRUE(decoder.has_value());
  EXPECT_THAT((*decoder)->CheckDecodable(Rank{6}).message(), HasSubstr("rank-0, rank-6, rank-7"));
}

TEST_F(GroupDecoderTest, InvalidParityShardsAreRefused) {
  Make(4, 1);
  SomeImages images(group_);
  EXPECT_FALSE(GroupDecoder::Open(images, "lm", kVersion, Rank{1}).has_value());
  images.lost.insert(ParityRank(1));
  EXPECT_EQ(GroupDecoder::Open(images, "lm", kVersion, ParityRank(1)).error().code(),
            ErrorCode::kNotFound);
  // Seals of another version are refused.
  EXPECT_FALSE(
      GroupDecoder::Open(images, "lm", {Incarnation{3}, Step{121}}, ParityRank(0)).has_value());
  std::vector<std::byte> chunk(kChunkBytes);
  auto decoder = GroupDecoder::Open(images, "lm", kVersion, ParityRank(0));
  ASSERT_TRUE(decoder.has_value());
  EXPECT_FALSE((*decoder)->Decode(Rank{0}, kFarAway / 2, chunk).ok());
  EXPECT_EQ((*decoder)->Seal(Rank{99}).error().code(), ErrorCode::kNotFound);
}

}  // namespace
}  // namespace holdfast
