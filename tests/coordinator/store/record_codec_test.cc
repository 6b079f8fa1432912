#include "coordinator/store/record_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace holdfast::coord {
namespace {

JobRecord SomeJob() { return {"gpt", 1000, Incarnation{3}, {"n1", "n2"}, {"n0"}, Step{17}}; }
LineageRecord SomeLineage() {
  return {"gpt", Incarnation{3}, "run-3", 4, Decision::kVersion, {Incarnation{2}, Step{90}}};
}
VersionRecord SomeVersion() {
  return {"gpt",
          {Incarnation{3}, Step{120}},
          2,
          Phase::kCommitted,
          TierBit(Tier::kMemory),
          TierBit(Tier::kDisk),
          true,
          1234567890123,
          1 << 20,
          {0xffffffffffffffff, 1}};
}

TEST(RecordCodecTest, EveryRecordComesBack) {
  EXPECT_EQ(DecodeJob(JobKey("gpt"), EncodeJob(SomeJob())).value(), SomeJob());
  EXPECT_EQ(DecodeLineage(LineageKey("gpt", Incarnation{3}), EncodeLineage(SomeLineage())).value(),
            SomeLineage());
  const VersionRecord version = SomeVersion();
  EXPECT_EQ(DecodeVersion(VersionKey("gpt", version.version), EncodeVersion(version)).value(),
            version);
  EXPECT_EQ(DecodeCluster(EncodeCluster("prod")).value(), "prod");
  EXPECT_EQ(DecodeEpoch(EncodeEpoch(Epoch{9})).value(), Epoch{9});
}

TEST(RecordCodecTest, KeysSortAsVersionsDo) {
  EXPECT_EQ(VersionKey("gpt", {Incarnation{3}, Step{255}}),
            "version/gpt/0000000000000003-00000000000000ff");
  EXPECT_LT(VersionKey("gpt", {Incarnation{3}, Step{999}}),
            VersionKey("gpt", {Incarnation{3}, Step{1000}}));
  EXPECT_LT(VersionKey("gpt", {Incarnation{9}, Step{1}}),
            VersionKey("gpt", {Incarnation{10}, Step{0}}));
}

TEST(RecordCodecTest, EveryFlippedBitAndEveryCutIsSeen) {
  const std::string key = VersionKey("gpt", SomeVersion().version);
  const std::string value = EncodeVersion(SomeVersion());
  for (size_t bit = 0; bit < value.size() * 8; ++bit) {
    std::string flipped = value;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    ASSERT_FALSE(DecodeVersion(key, flipped).has_value()) << "bit " << bit;
  }
  for (size_t length = 0; length < value.size(); ++length) {
    ASSERT_FALSE(DecodeVersion(key, value.substr(0, length)).has_value()) << length;
  }
}

TEST(RecordCodecTest, AValueUnderAnotherKeyIsSeen) {
  auto moved =
      DecodeVersion(VersionKey("gpt", {Incarnation{3}, Step{121}}), EncodeVersion(SomeVersion()));
  ASSERT_FALSE(moved.has_value());
  EXPECT_EQ(moved.error().code(), ErrorCode::kDataLoss);
  EXPECT_FALSE(DecodeVersion("version/gpt/x", EncodeVersion(SomeVersion())).has_value());
  EXPECT_FALSE(DecodeVersion("version/../0-0", EncodeVersion(SomeVersion())).has_value());
}

}  // namespace
}  // namespace holdfast::coord
