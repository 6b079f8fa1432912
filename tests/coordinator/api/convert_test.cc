#include "coordinator/api/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace holdfast::coord {
namespace {

pb::Holding GoodHolding() {
  pb::Holding holding;
  holding.set_job("gpt");
  holding.mutable_version()->set_incarnation(3);
  holding.mutable_version()->set_step(120);
  holding.set_rank(2);
  holding.set_world(4);
  holding.set_tier(3);
  holding.set_digest(0xfedcba9876543210);
  holding.set_image_bytes(1 << 30);
  return holding;
}

TEST(ConvertTest, HoldingGoesThereAndBack) {
  auto holding = FromProto(GoodHolding());
  ASSERT_TRUE(holding.has_value());
  EXPECT_EQ(holding->version, (VersionId{Incarnation{3}, Step{120}}));
  EXPECT_EQ(holding->tier, Tier::kDisk);
  pb::Holding again;
  ToProto(*holding, &again);
  EXPECT_EQ(again.SerializeAsString(), GoodHolding().SerializeAsString());
}

TEST(ConvertTest, RefusesWhatCannotBe) {
  std::vector<std::pair<std::string, std::function<void(pb::Holding&)>>> cases = {
      {"path traversal", [](auto& h) { h.set_job(".."); }},
      {"slash", [](auto& h) { h.set_job("a/b"); }},
      {"no job", [](auto& h) { h.clear_job(); }},
      {"no version", [](auto& h) { h.clear_version(); }},
      {"tier 0", [](auto& h) { h.set_tier(0); }},
      {"tier 9", [](auto& h) { h.set_tier(9); }},
      {"rank = world", [](auto& h) { h.set_rank(4); }},
      {"world 0", [](auto& h) { h.set_world(0); }},
      {"huge world", [](auto& h) { h.set_world(kWorldMax + 1); }},
  };
  for (auto& [name, spoil] : cases) {
    pb::Holding proto = GoodHolding();
    spoil(proto);
    auto holding = FromProto(proto);
    ASSERT_FALSE(holding.has_value()) << name;
    EXPECT_EQ(holding.error().code(), ErrorCode::kInvalidArgument) << name;
    EXPECT_FALSE(holding.error().message().empty());
  }
}

TEST(ConvertTest, OrdersGoThereAndBack) {
  PrepareOrder prepare{7,         "gpt", {Incarnation{1}, Step{2}}, Rank{3}, 4, Tier::kDisk, "n1",
                       "unix:/a", 99};
  pb::PrepareShard wire;
  ToProto(prepare, &wire);
  EXPECT_EQ(FromProto(wire).value(), prepare);

  JobWord word{"gpt",
               Incarnation{5},
               {Incarnation{4}, Step{9}},
               {Incarnation{4}, Step{8}},
               {{Incarnation{4}, Step{10}}},
               Step{11},
               {Incarnation{3}, Step{7}}};
  pb::JobState job;
  ToProto(word, &job);
  EXPECT_EQ(FromProto(job).value(), word);
}

TEST(ConvertTest, EveryErrorCrossesGrpcWhole) {
  for (uint32_t number = 1; number <= 16; ++number) {
    Status status(ErrorFromNumber(number), "why");
    EXPECT_EQ(FromGrpc(ToGrpc(status), "here"), status);
    pb::Outcome outcome;
    ToProto(status, &outcome);
    EXPECT_EQ(FromProto(outcome), status);
  }
}

TEST(ConvertTest, TransportErrorsNameTheEndpoint) {
  Status status = FromGrpc({grpc::StatusCode::UNAVAILABLE, "connection refused"}, "127.0.0.1:7070");
  EXPECT_EQ(status.code(), ErrorCode::kUnavailable);
  EXPECT_THAT(status.message(), ::testing::HasSubstr("127.0.0.1:7070: connection refused"));
}

}  // namespace
}  // namespace holdfast::coord
