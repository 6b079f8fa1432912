#include "agent/pipeline/rank_registry.h"

#include <gmock/gmock.h>

#include <optional>

#include "tests/agent/pipeline/parts.h"

namespace holdfast::agent {
namespace {

using ::testing::SizeIs;

constexpr VersionId kFirst{Incarnation{1}, Step{1}};

class RankRegistryTest : public PartsTest {};
class RankMemoryTest : public PartsTest {};

TEST_F(RankRegistryTest, ARankWithASecondLeaseIsNotRemoved) {
  const auto rank = Reserve("job", Rank{0});
  ASSERT_TRUE(rank) << rank.error().ToString();
  std::optional<RankLease> reader = ranks_->Find("job", Rank{0});
  EXPECT_EQ(ranks_->Remove(*rank, true).error().code(), ErrorCode::kUnavailable);
  EXPECT_TRUE(ranks_->Find("job", Rank{0}));
  reader.reset();
  EXPECT_TRUE(ranks_->Remove(*rank, true));
  EXPECT_FALSE(ranks_->Find("job", Rank{0}));
}

// Without a job state, no slot may be freed.
TEST_F(RankRegistryTest, MemoryThatIsAddedLaterFollowsTheJobState) {
  const auto frees = [&](uint32_t number) {
    const auto rank = Reserve("job", Rank{number}, 64 << 10);
    for (const uint64_t step : {1, 2}) Put(*rank, {Incarnation{1}, Step{step}});
    std::vector<FreedSlot> freed;
    return (*rank)
        ->slots.fills()
        .LeaseToFill({Incarnation{1}, Step{3}}, 1, 1000, &freed)
        .has_value();
  };
  EXPECT_FALSE(frees(0));
  JobState job;
  job.job = "job";
  job.incarnation = Incarnation{1};
  job.committed[Tier::kMemory] = VersionId{Incarnation{1}, Step{2}};
  ranks_->SetJobState(job);
  EXPECT_TRUE(frees(1));
  ranks_->ForgetJobState("job");
  EXPECT_FALSE(frees(2));
  ranks_->SetJobState(job);
  ranks_->ForgetJobStates();
  EXPECT_FALSE(frees(3));
}

TEST_F(RankRegistryTest, AnOverviewMakesNoLease) {
  const auto rank = Reserve("job", Rank{0});
  ASSERT_TRUE(rank);
  ranks_->ForEach([&](RankPipeline& visited) {
    EXPECT_EQ(&visited, rank->get());
    EXPECT_TRUE(rank->IsOnly());
  });
  EXPECT_TRUE(ranks_->HasMemoryOf("job"));
  EXPECT_FALSE(ranks_->HasMemoryOf("other"));
}

TEST_F(RankRegistryTest, ACopiedLeaseCountsAndAMovedOneDoesNot) {
  auto rank = Reserve("job", Rank{0});
  ASSERT_TRUE(rank);
  RankLease lease = *std::move(rank);
  EXPECT_TRUE(lease.IsOnly());
  {
    const RankLease copy = lease;
    EXPECT_FALSE(lease.IsOnly());
  }
  EXPECT_TRUE(lease.IsOnly());
  const RankLease moved = std::move(lease);
  EXPECT_TRUE(moved.IsOnly());
}

TEST_F(RankRegistryTest, ARankWithAVersionThatIsOnlyInMemoryIsNotRemoved) {
  const auto rank = Reserve("job", Rank{0});
  ASSERT_TRUE(rank);
  Put(*rank, kFirst);
  EXPECT_EQ(ranks_->Remove(*rank, true).error().code(), ErrorCode::kFailedPrecondition);
}

TEST_F(RankRegistryTest, AVersionInARetainedSegmentIsFound) {
  ShardKey key;
  uint64_t small = 0;
  {
    const auto rank = Reserve("job", Rank{0});
    ASSERT_TRUE(rank);
    key = Put(*rank, kFirst);
    small = (*rank)->segment.id();
  }
  const auto large = Reserve("job", Rank{0}, 2 * kSlotBytes);
  ASSERT_TRUE(large) << large.error().ToString();
  EXPECT_NE((*large)->segment.id(), small);
  EXPECT_EQ(ranks_->FindHolder(key)->segment.id(), small);
  EXPECT_EQ(ranks_->FindHolder({"job", {Incarnation{9}, Step{9}}, Rank{0}})->segment.id(),
            (*large)->segment.id());
  EXPECT_THAT(ranks_->Retained(), SizeIs(1));
  EXPECT_THAT(ranks_->OfJob("job"), SizeIs(2));
}

TEST_F(RankRegistryTest, IdleRanksHaveNoTrainerAndNoPlaceInTheStart) {
  ASSERT_TRUE(Reserve("job", Rank{0}));
  ASSERT_TRUE(Reserve("job", Rank{1}));
  ASSERT_TRUE(Reserve("other", Rank{0}));
  EXPECT_THAT(ranks_->Idle("job", 2), SizeIs(1));
  EXPECT_THAT(ranks_->Idle("job", 1), SizeIs(2));
  ranks_->Find("other", Rank{0})->connected.store(true);
  EXPECT_THAT(ranks_->Idle("job", 2), SizeIs(0));
}

TEST_F(RankRegistryTest, ALaterRankGetsTheLifeToo) {
  EXPECT_EQ(ranks_->SetLife(LifeId{7}, LifeId{7}), LifeId{0});
  const auto rank = Reserve("job", Rank{0});
  ASSERT_TRUE(rank);
  EXPECT_EQ((*rank)->slots.life(), LifeId{7});
  EXPECT_EQ(ranks_->SetLife(LifeId{8}, LifeId{7}), LifeId{7});
  EXPECT_EQ((*rank)->slots.life(), LifeId{8});
}

TEST_F(RankMemoryTest, MemoryOfAnotherJobIsReassignedUnlessItIsInUse) {
  std::optional<RankLease> used;
  {
    auto rank = Reserve("old", Rank{0}, 12 << 20);
    ASSERT_TRUE(rank) << rank.error().ToString();
    used = *std::move(rank);
  }
  EXPECT_EQ(Reserve("new", Rank{0}, 12 << 20).error().code(), ErrorCode::kResourceExhausted);
  used.reset();
  EXPECT_TRUE(Reserve("new", Rank{0}, 12 << 20));
  EXPECT_FALSE(ranks_->Find("old", Rank{0}));
}

class LimitedMemoryTest : public RankMemoryTest {
 protected:
  LimitedMemoryTest() {
    limits_.job_bytes = 12 << 20;
    limits_.priority_jobs = {"prod"};
    limits_.priority_bytes = 10 << 20;
  }
};

TEST_F(LimitedMemoryTest, IdleMemoryOfAJobWithPriorityIsTakenLast) {
  ASSERT_TRUE(Reserve("prod", Rank{0}, 4 << 20));
  ASSERT_TRUE(Reserve("first", Rank{0}, 4 << 20));
  ASSERT_TRUE(Reserve("zeta", Rank{0}, 4 << 20));
  // 27 of 32 MiB are reserved, and by the jobs without priority 18 of 22.
  ASSERT_TRUE(Reserve("new", Rank{0}, 4 << 20));
  EXPECT_TRUE(ranks_->Find("prod", Rank{0}));
  EXPECT_TRUE(ranks_->Find("first", Rank{0}));
  EXPECT_FALSE(ranks_->Find("zeta", Rank{0}));
  ranks_->Find("first", Rank{0})->connected.store(true);
  ranks_->Find("new", Rank{0})->connected.store(true);
  const auto refused = Reserve("newer", Rank{0}, 4 << 20);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("jobs without priority have reserved 18 MiB of the 22"),
            std::string::npos)
      << refused.error().ToString();
  EXPECT_TRUE(ranks_->Find("prod", Rank{0})) << "its memory would not help";
}

TEST_F(LimitedMemoryTest, AJobAtItsQuotaTakesNoMemoryOfOtherJobs) {
  ASSERT_TRUE(Reserve("prod", Rank{0}, 4 << 20));
  ASSERT_TRUE(Reserve("old", Rank{0}));
  ranks_->Find("prod", Rank{0})->connected.store(true);
  EXPECT_EQ(Reserve("prod", Rank{1}, 4 << 20).error().code(), ErrorCode::kResourceExhausted);
  EXPECT_TRUE(ranks_->Find("old", Rank{0}));
}

TEST_F(RankMemoryTest, ReleasedRetainedMemoryIsReportedAsRemoved) {
  ShardKey key;
  {
    const auto rank = Reserve("job", Rank{0});
    ASSERT_TRUE(rank);
    key = Put(*rank, kFirst);
  }
  ASSERT_TRUE(Reserve("job", Rank{0}, 2 * kSlotBytes));
  memory_->ReleaseRetained();
  EXPECT_THAT(ranks_->Retained(), SizeIs(1));  // no newer version is committed
  JobState job;
  job.job = "job";
  job.incarnation = Incarnation{1};
  job.committed[Tier::kMemory] = VersionId{Incarnation{1}, Step{2}};
  ranks_->SetJobState(job);
  memory_->ReleaseRetained();
  EXPECT_THAT(ranks_->Retained(), SizeIs(0));
  EXPECT_TRUE(link_.WasRemoved(key, Tier::kMemory));
}

TEST_F(RankMemoryTest, AJobIsReleasedOnceItsTrainersHaveLeft) {
  ASSERT_TRUE(Reserve("job", Rank{0}));
  ranks_->Find("job", Rank{0})->connected.store(true);
  memory_->ReleaseJob("job");
  EXPECT_TRUE(ranks_->Find("job", Rank{0}));
  ranks_->Find("job", Rank{0})->connected.store(false);
  memory_->ReleaseJob("job");
  EXPECT_FALSE(ranks_->Find("job", Rank{0}));
  EXPECT_EQ(arena_->usage().segments, 0U);
}

}  // namespace
}  // namespace holdfast::agent
