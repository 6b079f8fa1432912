#include "coordinator/state/restore_texts.h"
#include "tests/coordinator/state/modules/module_test.h"

namespace holdfast::coord {
namespace {
using RestoreTextsModule = ModuleTest;
using ::testing::HasSubstr;

TEST_F(RestoreTextsModule, MissingShardsAreNamedWithTheirLastNode) {
  VersionState& version = AddCommitted(V(2, 10), {Tier::kMemory});
  version.damage_texts.push_back("chunk 5 of rank 0");
  Lose(1);
  const std::string text = MissingText(context, job(), version);
  EXPECT_THAT(text, HasSubstr("version 2-10 has no replica of rank 1 (last on b)"));
  EXPECT_THAT(text, HasSubstr("damaged: chunk 5 of rank 0"));
  EXPECT_THAT(text, HasSubstr("not attached: b"));
}

TEST_F(RestoreTextsModule, AGroupThatLostTooMuchIsNamed) {
  MakeJob(4);
  MakeGroup(1);
  VersionState& version = AddCommitted(V(2, 10), {Tier::kMemory, Tier::kPeer});
  Lose(1);
  EXPECT_THAT(MissingText(context, job(), version), HasSubstr("could not be prepared"));
  Lose(2);
  EXPECT_THAT(MissingText(context, job(), version),
              HasSubstr("parity group 0 of 4 nodes can decode without 1 of them, it lacks 2:"));
}

TEST_F(RestoreTextsModule, TheReasonDependsOnTheVersion) {
  EXPECT_EQ(WhyNotRestorable(context, job(), V(1, 10)).code(), ErrorCode::kNotFound);
  AddCommitted(V(1, 10), {Tier::kDisk});
  job().lineage().decision = Decision::kVersion;
  job().lineage().restored = V(1, 5);
  EXPECT_THAT(WhyNotRestorable(context, job(), V(1, 10)).message(), HasSubstr("was abandoned"));
  EXPECT_THAT(WhyNothingRestorable(context, job()).message(),
              HasSubstr("every committed version was abandoned"));
}

}  // namespace
}  // namespace holdfast::coord
