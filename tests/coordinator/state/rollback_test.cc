#include "tests/coordinator/state/harness.h"

// Rollbacks of a running job, for example after the loss has become NaN.

namespace holdfast::coord {
namespace {
class RollbackTest : public testing::Test {
 protected:
  RollbackTest() {
    h_.Attach("n1");
    h_.Join("n1", "one", 0, 2);
    h_.Join("n1", "one", 1, 2);
    const RequestId request = h_.RequestRestore("n1", 1, 0);
    EXPECT_EQ(h_.ReplyTo(request)->outcome.code(), ErrorCode::kNotFound) << "a fresh start";
    for (uint64_t step = 1; step <= 3; ++step) Save(step, Tier::kMemory);
  }

  void Save(uint64_t step, Tier tier) {
    h_.Hold("n1", {H(V(1, step), 0, tier), H(V(1, step), 1, tier)});
  }

  Harness h_;
};

TEST_F(RollbackTest, ToANamedVersionOfTheIncarnation) {
  for (const bool reshard : {true, false}) {
    const RequestId request = h_.RequestRestore("n1", 1, 0, V(1, 3), reshard);
    ASSERT_TRUE(h_.ReplyTo(request).has_value());
    EXPECT_TRUE(h_.ReplyTo(request)->outcome.ok()) << h_.ReplyTo(request)->outcome.ToString();
    EXPECT_EQ(h_.ReplyTo(request)->version, V(1, 3));
  }
  EXPECT_EQ(h_.Job().incarnation.value, 1U);
}

TEST_F(RollbackTest, ToTheNewestVersionOnceAllRanksRequestIt) {
  const RequestId first = h_.RequestReshard("n1", 1, 0);
  EXPECT_FALSE(h_.ReplyTo(first).has_value()) << "the other ranks may get a newer one";
  Save(4, Tier::kMemory);  // reported late
  const RequestId second = h_.RequestReshard("n1", 1, 1);
  ASSERT_TRUE(h_.ReplyTo(second).has_value());
  ASSERT_TRUE(h_.ReplyTo(first).has_value());
  EXPECT_EQ(h_.ReplyTo(first)->version, V(1, 4));
  EXPECT_EQ(h_.ReplyTo(second)->version, V(1, 4));
}

TEST(RollbackWithoutARestore, RanksThatNeverRestoredAllGetTheNewestVersion) {
  Harness h;
  h.Attach("n1");
  h.Join("n1", "one", 0, 2);
  h.Join("n1", "one", 1, 2);
  h.Hold("n1", {H(V(1, 1), 0, Tier::kMemory), H(V(1, 1), 1, Tier::kMemory)});
  const RequestId first = h.RequestReshard("n1", 1, 0);
  const RequestId second = h.RequestReshard("n1", 1, 1);
  for (const RequestId request : {first, second}) {
    ASSERT_TRUE(h.ReplyTo(request).has_value()) << "both ranks have requested it";
    EXPECT_EQ(h.ReplyTo(request)->version, V(1, 1));
  }
}

TEST(RollbackWithoutARestore, ARollbackToAnEarlierIncarnationIsStoredAsTheRestoreDecision) {
  Harness h;
  h.Attach("n1");
  for (uint32_t rank : {0U, 1U}) h.Join("n1", "one", rank, 2);
  h.Hold("n1", {H(V(1, 1), 0, Tier::kDisk), H(V(1, 1), 1, Tier::kDisk)});
  for (uint32_t rank : {0U, 1U}) h.Join("n1", "two", rank, 2);
  h.Hold("n1", {H(V(2, 1), 0, Tier::kMemory), H(V(2, 1), 1, Tier::kMemory)});
  h.ReportRemoved("n1", V(2, 1), 0, Tier::kMemory);
  const RequestId first = h.RequestRestore("n1", 2, 0);
  const RequestId second = h.RequestRestore("n1", 2, 1);
  for (const RequestId request : {first, second}) {
    ASSERT_TRUE(h.ReplyTo(request).has_value());
    EXPECT_EQ(h.ReplyTo(request)->version, V(1, 1));
  }
  const LineageRecord& begun = h.stored.lineages.at({"gpt", Incarnation{2}});
  EXPECT_EQ(begun.decision, Decision::kVersion);
  EXPECT_EQ(begun.restored, V(1, 1));
}

// A launcher starts the job again with the same run ID: it continues from the newest version.
TEST_F(RollbackTest, APendingVersionIsNotCompletedAfterARollback) {
  h_.Hold("n1", {H(V(1, 4), 0, Tier::kMemory)});  // rank 1 ended before it saved step 4
  h_.Join("n1", "one", 0, 2);
  h_.Join("n1", "one", 1, 2);
  h_.RequestReshard("n1", 1, 0);
  EXPECT_EQ(h_.ReplyTo(h_.RequestReshard("n1", 1, 1))->version, V(1, 3)) << "not a fresh start";
  h_.Hold("n1", {H(V(1, 4), 1, Tier::kMemory)});  // trained again
  EXPECT_TRUE(h_.Commits(Tier::kMemory).empty());
  Save(5, Tier::kMemory);
  EXPECT_THAT(h_.Stored(), testing::Contains(V(1, 5)));
}

TEST_F(RollbackTest, AnUnknownVersionIsRefused) {
  const RequestId never = h_.RequestReshard("n1", 1, 0, V(1, 9));
  EXPECT_EQ(h_.ReplyTo(never)->outcome.code(), ErrorCode::kNotFound);
}

TEST_F(RollbackTest, RetentionKeepsTheVersionOfTheRollback) {
  for (uint64_t step = 1; step <= 3; ++step) Save(step, Tier::kDisk);
  const RequestId request = h_.RequestReshard("n1", 1, 0, V(1, 1));
  ASSERT_TRUE(h_.ReplyTo(request)->outcome.ok());
  for (uint64_t step = 4; step <= 9; ++step) {
    Save(step, Tier::kMemory);
    Save(step, Tier::kDisk);
  }
  EXPECT_THAT(h_.Stored(), testing::Contains(V(1, 1)));
  // The next start does not need the version.
  h_.Join("n1", "two", 0, 2);
  h_.Join("n1", "two", 1, 2);
  h_.Hold("n1", {H(V(2, 10), 0, Tier::kDisk), H(V(2, 10), 1, Tier::kDisk)});
  h_.ReportRemoved("n1", V(1, 1), 0, Tier::kDisk);
  h_.ReportRemoved("n1", V(1, 1), 1, Tier::kDisk);
  EXPECT_THAT(h_.Stored(), testing::Not(testing::Contains(V(1, 1))));
}

TEST_F(RollbackTest, ANewStartFencesTheRequest) {
  const RequestId request = h_.RequestReshard("n1", 1, 0);
  h_.Join("n1", "two", 0, 2);
  ASSERT_TRUE(h_.ReplyTo(request).has_value());
  EXPECT_EQ(h_.ReplyTo(request)->outcome.code(), ErrorCode::kFenced);
}

TEST_F(RollbackTest, OfARunThatRestoredAtItsStart) {
  Save(3, Tier::kDisk);
  h_.Join("n1", "two", 0, 2);
  h_.Join("n1", "two", 1, 2);
  const RequestId start = h_.RequestReshard("n1", 2, 0);
  ASSERT_EQ(h_.ReplyTo(start)->version, V(1, 3));
  h_.Hold("n1", {H(V(2, 4), 0, Tier::kMemory), H(V(2, 4), 1, Tier::kMemory)});
  EXPECT_EQ(h_.ReplyTo(h_.RequestReshard("n1", 2, 0, V(2, 4)))->version, V(2, 4));
  EXPECT_EQ(h_.ReplyTo(h_.RequestReshard("n1", 2, 0, V(1, 3)))->version, V(1, 3));
}

}  // namespace
}  // namespace holdfast::coord
