#include "coordinator/state/verification.h"

#include "tests/coordinator/state/modules/module_test.h"

namespace holdfast::coord {
namespace {
class VerificationModule : public ModuleTest {
 protected:
  void SetUp() override { MakeJob(2); }
  ErrorCode Verify(const std::string& name, VersionId version, Verification found) {
    effects.clear();
    OnVersionVerified(context, {7, name, version, found});
    return Added<Reply>().at(0).outcome.code();
  }
};

TEST_F(VerificationModule, TheLastOutcomeIsStoredWithItsTime) {
  AddCommitted(V(2, 10), {Tier::kMemory});
  context.at.wall_nanos = 5'000;
  EXPECT_EQ(Verify("gpt", V(2, 10), {.deep = true, .ok = 4, .left_out = 2}), ErrorCode::kOk);
  const Verification first{5'000, true, 4, 0, 0, 0, 2};
  ASSERT_EQ(Added<PutVersion>().size(), 1U);
  EXPECT_EQ(Added<PutVersion>()[0].record.verification, first);
  EXPECT_EQ(Added<PutVersion>()[0].committed_tier_bit, 0U) << "no commit";
  context.at.wall_nanos = 9'000;
  EXPECT_EQ(Verify("gpt", V(2, 10), {.ok = 1, .damaged = 1}), ErrorCode::kOk);
  const Verification second{9'000, false, 1, 1, 0, 0, 0};
  EXPECT_EQ(Added<PutVersion>().at(0).record.verification, second);
  EXPECT_EQ(job().versions.at(V(2, 10)).verification, second);
}

TEST_F(VerificationModule, OnlyCommittedVersionsHaveOne) {
  Add(V(2, 10));
  AddCommitted(V(2, 9), {Tier::kDisk}).phase = Phase::kRemoving;
  EXPECT_EQ(Verify("gpt", V(2, 10), {.ok = 1}), ErrorCode::kNotFound);
  EXPECT_EQ(Verify("gpt", V(2, 9), {.ok = 1}), ErrorCode::kNotFound);
  EXPECT_EQ(Verify("gpt", V(2, 11), {.ok = 1}), ErrorCode::kNotFound);
  EXPECT_EQ(Verify("another", V(2, 10), {.ok = 1}), ErrorCode::kNotFound);
  EXPECT_TRUE(Added<PutVersion>().empty());
}

}  // namespace
}  // namespace holdfast::coord
