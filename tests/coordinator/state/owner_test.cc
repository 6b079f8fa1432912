// Who owns a job: the user of the first join, or the user that an operator names. Without an owner,
// only root may join.
#include "coordinator/state/owner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/state/job.h"
#include "tests/coordinator/state/harness.h"

namespace holdfast::coord {
namespace {
using ::testing::HasSubstr;

TEST(Owner, OnlyTheOwnerOpensAJob) {
  EXPECT_TRUE(CheckOwner("lm", 7, 7).ok());
  EXPECT_EQ(CheckOwner("lm", 7, 8).code(), ErrorCode::kPermissionDenied);
  EXPECT_EQ(CheckOwner("lm", 7, 0).code(), ErrorCode::kPermissionDenied) << "root is another user";
  EXPECT_THAT(CheckOwner("lm", 7, 8).message(), HasSubstr("belongs to uid 7"));
}

TEST(Owner, WithoutAnOwnerOnlyRootOpensAJob) {
  EXPECT_TRUE(CheckOwner("lm", std::nullopt, 0).ok());
  const Status refused = CheckOwner("lm", std::nullopt, 8);
  EXPECT_EQ(refused.code(), ErrorCode::kPermissionDenied);
  EXPECT_THAT(refused.message(), HasSubstr("holdfast adopt lm --owner USER"));
}

/// A job that was adopted, so that it has no owner.
class AdoptedOwner : public ::testing::Test {
 protected:
  AdoptedOwner() : h_(NewLife()) {
    h_.Attach("n0", {Other(0)});
    h_.Apply(AdoptRequested{900, "", {}, false});
  }
  static StateOptions NewLife() {
    StateOptions options;
    options.life = LifeId{78};
    return options;
  }
  static StoredReplica Other(uint32_t rank) {
    StoredReplica replica = H(V(1, 5), rank, Tier::kDisk, 1);
    replica.life = LifeId{77};
    return replica;
  }
  Harness h_;
};

TEST_F(AdoptedOwner, AnOperatorNamesTheOwnerOnce) {
  ASSERT_EQ(h_.stored.jobs.size(), 1U);
  EXPECT_EQ(h_.stored.jobs.at("gpt").uid, kNoOwner);
  EXPECT_EQ(h_.Join("n0", "run-2", 0, 1, 8).outcome.code(), ErrorCode::kPermissionDenied);
  h_.Apply(AdoptRequested{901, "gpt", {}, true, 8});
  EXPECT_EQ(h_.stored.jobs.at("gpt").uid, kNoOwner) << "a dry run";
  h_.Apply(AdoptRequested{902, "gpt", {}, false, 8});
  EXPECT_EQ(h_.stored.jobs.at("gpt").uid, 8U);
  ASSERT_TRUE(h_.JobStateTo("n0").has_value());
  EXPECT_EQ(h_.JobStateTo("n0")->owner, std::optional<uint32_t>(8));
  h_.Apply(AdoptRequested{903, "gpt", {}, false, 9});
  EXPECT_EQ(h_.ReplyTo(903)->outcome.code(), ErrorCode::kFailedPrecondition);
  h_.Apply(AdoptRequested{904, "none", {}, false, 9});
  EXPECT_EQ(h_.ReplyTo(904)->outcome.code(), ErrorCode::kNotFound);
  EXPECT_EQ(h_.Join("n0", "run-2", 0, 1, 9).outcome.code(), ErrorCode::kPermissionDenied);
  EXPECT_TRUE(h_.Join("n0", "run-2", 0, 1, 8).outcome.ok());
}

TEST_F(AdoptedOwner, RootThatOpensTheJobBecomesItsOwner) {
  EXPECT_TRUE(h_.Join("n0", "run-2", 0, 1, 0).outcome.ok());
  EXPECT_EQ(h_.stored.jobs.at("gpt").uid, 0U);
  EXPECT_EQ(h_.Join("n0", "run-3", 0, 1, 8).outcome.code(), ErrorCode::kPermissionDenied);
}

}  // namespace
}  // namespace holdfast::coord
