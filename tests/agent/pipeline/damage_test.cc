#include "agent/pipeline/damage_tracker.h"

#include <gmock/gmock.h>

#include "agent/pipeline/local_shards.h"
#include "tests/agent/pipeline/parts.h"

namespace holdfast::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr VersionId kVersion{Incarnation{1}, Step{4}};

class DamageTrackerTest : public PartsTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(PartsTest::SetUp());
    damage_ = std::make_unique<DamageTracker>(*ranks_, *volume_, link_);
    shards_ = std::make_unique<LocalShards>(*ranks_, *volume_, *damage_);
    const auto rank = Reserve("job", Rank{0});
    ASSERT_TRUE(rank) << rank.error().ToString();
    key_ = Put(*rank, kVersion);
  }

  Status ReadSeal() {
    const auto seal = shards_->Source(key_, Tier::kMemory)->ReadSeal();
    return seal ? Status::Ok() : seal.error();
  }
  bool IsIntact() {
    const RankLease rank = ranks_->Find("job", Rank{0});
    const auto slot = rank->slots.pins().Pin(kVersion);
    if (slot) rank->slots.pins().Unpin(*slot);
    return slot.has_value();
  }
  const Status how_ = DataLossError("chunk 0 does not match its checksum");
  ShardKey key_;
  std::unique_ptr<DamageTracker> damage_;
  std::unique_ptr<LocalShards> shards_;
};

TEST_F(DamageTrackerTest, AReplicaWithoutAGroupIsRemoved) {
  ASSERT_EQ(ReadSeal(), Status::Ok());
  EXPECT_TRUE(damage_->OnDamaged(key_, Tier::kMemory, how_));
  EXPECT_TRUE(link_.WasRemoved(key_, Tier::kMemory));
  EXPECT_EQ(ReadSeal().code(), ErrorCode::kNotFound);
}

TEST_F(DamageTrackerTest, AReplicaOfAProtectedVersionStaysUntilItIsRepaired) {
  const auto parity = Reserve("job", ParityRank(0));
  ASSERT_TRUE(parity);
  Put(*parity, kVersion);
  EXPECT_TRUE(damage_->OnDamaged(key_, Tier::kMemory, how_));
  ASSERT_TRUE(link_.report(key_, Tier::kMemory));
  EXPECT_EQ(link_.report(key_, Tier::kMemory)->damage, how_.message());
  EXPECT_FALSE(link_.WasRemoved(key_, Tier::kMemory));
  EXPECT_FALSE(IsIntact());
  EXPECT_EQ(ReadSeal(), Status::Ok()) << "its good chunks can be read";
  EXPECT_FALSE(damage_->OnDamaged(key_, Tier::kMemory, how_));  // known already

  const RankLease rank = ranks_->Find("job", Rank{0});
  const auto slot = rank->slots.pins().Pin(kVersion, SlotPins::Find::kIncludeDamaged);
  ASSERT_TRUE(slot);
  rank->slots.pins().Verified(*slot, /*on_disk=*/false);
  damage_->OnVerified({"job", kVersion, Rank{0}, 1}, Tier::kMemory, *rank->segment.seal(*slot));
  rank->slots.pins().Unpin(*slot);
  EXPECT_EQ(link_.report(key_, Tier::kMemory)->damage, "");
  EXPECT_TRUE(IsIntact());
}

TEST_F(DamageTrackerTest, VerifyReportsTheDamageThatItFinds) {
  const auto seal = shards_->Verify(key_, Tier::kMemory, /*deep=*/true);
  ASSERT_TRUE(seal) << seal.error().ToString();
  {
    const RankLease rank = ranks_->Find("job", Rank{0});
    const auto slot = rank->slots.pins().Pin(kVersion);
    rank->segment.slot(*slot)[seal->image_bytes - 1] ^= std::byte{1};
    rank->slots.pins().Unpin(*slot);
  }
  EXPECT_TRUE(shards_->Verify(key_, Tier::kMemory, /*deep=*/false));
  EXPECT_EQ(shards_->Verify(key_, Tier::kMemory, /*deep=*/true).error().code(),
            ErrorCode::kDataLoss);
  EXPECT_TRUE(link_.WasRemoved(key_, Tier::kMemory));
}

TEST(Warnings, EachTopicHasOneWarning) {
  FakeCoordinator link;
  Warnings warnings(link);
  warnings.Set("disk", "disk full");
  warnings.Set("parity/job", "no memory");
  warnings.Set("disk", "disk failed");
  EXPECT_THAT(link.warnings(), ElementsAre("disk failed", "no memory"));
  warnings.Set("disk", "");
  EXPECT_THAT(link.warnings(), ElementsAre("no memory"));
  warnings.Set("parity/job", "");
  EXPECT_THAT(link.warnings(), IsEmpty());
}

}  // namespace
}  // namespace holdfast::agent
