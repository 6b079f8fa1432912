#include "storage/volume/layout.h"

#include "tests/storage/volume/volume_test_util.h"

namespace holdfast {
namespace {

TEST(Layout, NamesMatchTheFormat) {
  EXPECT_EQ(VersionPath("job", {Incarnation{3}, Step{120}}), "job/v3-120");
  EXPECT_EQ(SealName(Rank{7}), "rank-7.seal");
  EXPECT_EQ(PartName(Rank{7}, 0, 1), "rank-7.safetensors");
  EXPECT_EQ(PartName(Rank{7}, 2, 3), "rank-7.part-2.safetensors");
}

TEST(Layout, EveryNameRoundTrips) {
  for (uint32_t rank : {0U, 7U, kWorldMax - 1}) {
    for (uint32_t count : {1U, 3U, 64U}) {
      uint32_t part = count - 1;
      std::string name = PartName(Rank{rank}, part, count);
      auto parsed = ParseShardFileName(name);
      ASSERT_TRUE(parsed) << name;
      EXPECT_EQ(parsed->rank, Rank{rank});
      EXPECT_FALSE(parsed->seal);
      EXPECT_FALSE(parsed->temporary);
      EXPECT_EQ(parsed->part, count == 1 ? std::nullopt : std::optional(part));
      auto temporary = ParseShardFileName(TemporaryName(name));
      ASSERT_TRUE(temporary);
      EXPECT_TRUE(temporary->temporary);
    }
    auto seal = ParseShardFileName(SealName(Rank{rank}));
    ASSERT_TRUE(seal);
    EXPECT_TRUE(seal->seal);
    EXPECT_TRUE(ParseShardFileName(TemporaryName(SealName(Rank{rank})))->temporary);
  }
  auto tombstone = ParseVersionDirectoryName(TombstoneName("v3-120"));
  ASSERT_TRUE(tombstone);
  EXPECT_TRUE(tombstone->tombstone);
  EXPECT_EQ(tombstone->version, (VersionId{Incarnation{3}, Step{120}}));
}

TEST(Layout, ForeignNamesAreRefused) {
  for (const char* name :
       {"", "rank-", "rank-1", "rank-01.seal", "rank--1.seal", "rank-1.seal2", "rank-1.seal.tmp.",
        "rank-1.seal.tmp.XYZ", "rank-1.seal.tmp.0123456789abcde", "rank-99999999999.seal",
        "rank-1048576.seal", "rank-1.part-.safetensors", "rank-1.part-64.safetensors",
        "rank-1.part-00.safetensors", "rank-1.bin", "RANK-1.seal", "xrank-1.seal"}) {
    EXPECT_FALSE(ParseShardFileName(name)) << name;
  }
  for (const char* name : {"", "v", "v3", "3-120", "v03-1", "v3-120x", "v3-120.deleted.",
                           "v3-120.deleted.xyz", "v3-120.old", "V3-120"}) {
    EXPECT_FALSE(ParseVersionDirectoryName(name)) << name;
  }
}

TEST(Layout, JobsMayNotUseTheVolumesNames) {
  EXPECT_STATUS_OK(ValidateJobName("gpt-2.b_1"));
  for (const char* name : {"", ".", "..", "a/b", "quarantine", "HOLDFAST", "lost+found"}) {
    EXPECT_EQ(ValidateJobName(name).code(), ErrorCode::kInvalidArgument) << name;
  }
}

TEST(Layout, RootTemporaries) {
  EXPECT_TRUE(IsRootTemporary("HOLDFAST.tmp.0123456789abcdef"));
  EXPECT_TRUE(IsRootTemporary(".probe-0123456789abcdef"));
  EXPECT_FALSE(IsRootTemporary("HOLDFAST"));
  EXPECT_FALSE(IsRootTemporary(".probe-notes"));
}

}  // namespace
}  // namespace holdfast
