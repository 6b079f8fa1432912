#include "storage/parity/shard_group.h"

#include <gmock/gmock.h>

#include "storage/format/image.h"
#include "tests/storage/parity/parity_group.h"

namespace holdfast {
namespace {
using ::testing::HasSubstr;

constexpr VersionId kProtected{Incarnation{3}, Step{7}};

/// The parity shard of the second member of a group of three nodes with two ranks each.
class ShardGroupTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::vector<std::vector<Rank>> nodes(3);
    for (uint32_t rank = 0; rank < 6; ++rank) {
      const std::vector<std::byte> image(5000 + rank, static_cast<std::byte>(rank + 1));
      group_.Add({"job", kProtected, Rank{rank}, 6}, image);
      nodes[rank / 2].push_back(Rank{rank});
    }
    group_.AddParity("job", kProtected, 6, 1, nodes, /*first_number=*/3);
    shard_ = &group_.shards.at(ParityRank(4));
    image_ = ParseImage(shard_->image, shard_->image.size()).value();
  }
  Result<ShardGroup> Parse(std::span<const std::byte> seals, const ShardIdentity& identity) const {
    const PlacedExtra& extra = image_.extras.at(0);
    const auto bytes = shard_->image.subspan(image_.data_offset + extra.begin, extra.bytes());
    return ParseShardGroup(identity, seals,
                           {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  }
  std::span<std::byte> Seals() const {
    const ImageRange range = SealsOf(image_).value();
    return shard_->image.subspan(range.begin, range.bytes());
  }

  ParityGroup group_;
  ParityGroup::Shard* shard_ = nullptr;
  ParsedImage image_;
};

TEST_F(ShardGroupTest, AParityShardListsItsGroup) {
  const auto group = Parse(Seals(), shard_->seal.identity);
  ASSERT_TRUE(group.has_value()) << group.error().ToString();
  EXPECT_EQ(group->plan.members().size(), 3U);
  EXPECT_EQ(group->plan.members()[1].number, 4U);
  ASSERT_EQ(group->shards.size(), 6U);
  for (uint32_t rank = 0; rank < 6; ++rank) {
    const ShardSeal& seal = group_.shards.at(Rank{rank}).seal;
    EXPECT_EQ(group->shards[rank], (ListedShard{Rank{rank}, seal.digest(), seal.image_bytes}));
  }
}

TEST_F(ShardGroupTest, SealsThatAreNotThoseOfThePlanAreRefused) {
  ShardIdentity other = shard_->seal.identity;
  other.version.step = Step{8};
  EXPECT_THAT(Parse(Seals(), other).error().message(), HasSubstr("lists the seal of job"));
  const std::vector<std::byte> none(64);
  EXPECT_THAT(Parse(none, shard_->seal.identity).error().message(),
              HasSubstr("does not list the seal of rank-0"));
  EXPECT_EQ(Parse(Seals().first(100), shard_->seal.identity).error().code(), ErrorCode::kDataLoss);
  Seals()[40] ^= std::byte{1};
  EXPECT_EQ(Parse(Seals(), shard_->seal.identity).error().code(), ErrorCode::kDataLoss);
}

TEST_F(ShardGroupTest, AnImageOfARankDescribesNoGroup) {
  image_.identity.rank = Rank{0};
  EXPECT_EQ(SealsOf(image_).error().code(), ErrorCode::kDataLoss);
}

}  // namespace
}  // namespace holdfast
