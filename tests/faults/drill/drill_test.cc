#include "faults/drill/drill.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "faults/drill/links.h"
#include "faults/drill/report.h"

namespace holdfast::faults {
namespace {
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

TEST(DrillTest, ObjectivesAreParsed) {
  const DrillObjective objective =
      ParseDrillObjective("detect=10s,recover=1m,lost-steps=1").value();
  EXPECT_EQ(objective.detect_ms, 10'000);
  EXPECT_EQ(objective.recover_ms, 60'000);
  EXPECT_EQ(objective.lost_steps, 1);
  EXPECT_EQ(ParseDrillObjective("").value(), DrillObjective{});
  EXPECT_EQ(ParseDrillObjective("lost-steps=0").value().lost_steps, 0);
}

TEST(DrillTest, BadObjectivesAreExplained) {
  for (const char* text : {"detect", "detect=", "detect=soon", "detect=-1s", "lost-steps=1.5",
                           "lost-steps=-1", "lost-steps=1x", "quick=1s", "detect=1s,", ",",
                           "detect=1s,detect=2s", "lost-steps=1,lost-steps=1"}) {
    const auto objective = ParseDrillObjective(text);
    ASSERT_FALSE(objective.has_value()) << text;
    EXPECT_EQ(objective.error().code(), ErrorCode::kInvalidArgument) << text;
    EXPECT_THAT(objective.error().message(), HasSubstr("detect=10s,recover=60s")) << text;
  }
}

TEST(DrillTest, TargetsAreParsed) {
  EXPECT_EQ(ParseDrillTarget({"rank", "3"})->rank, 3U);
  EXPECT_EQ(ParseDrillTarget({"n2"})->node, "n2");
  EXPECT_FALSE(ParseDrillTarget({})->rank.has_value());
  EXPECT_FALSE(ParseDrillTarget({"rank"}).has_value());
  EXPECT_FALSE(ParseDrillTarget({"rank", "-1"}).has_value());
  EXPECT_FALSE(ParseDrillTarget({"rank", "4294967295"}).has_value());
  EXPECT_EQ(ParseDrillTarget({"n1,n2"})->node, "n1");
  EXPECT_EQ(ParseDrillTarget({"n1,n2"})->peer, "n2");
  for (const char* text : {"n1,", ",n1", "n1,n1", "n1,n2,n3", "n1,rank", ","}) {
    EXPECT_FALSE(ParseDrillTarget({text}).has_value()) << text;
  }
  EXPECT_FALSE(ParseDrillTarget({"n1", "n2"}).has_value());
  EXPECT_FALSE(ParseDrillTarget({"../n1"}).has_value());
}

TEST(DrillTest, EachKindHasItsTraits) {
  for (const DrillTraits& traits : AllDrills()) {
    EXPECT_EQ(ParseDrillKind(traits.name).value(), traits.kind);
    EXPECT_STREQ(TraitsOf(traits.kind).name, traits.name);
  }
  EXPECT_THAT(ParseDrillKind("melt-node").error().message(), HasSubstr("kill-node"));
}

void AddNode(coordinator::GetStatusReply& status, const std::string& name, const std::string& peer,
             const std::string& data) {
  coordinator::NodeStatus* node = status.add_nodes();
  node->set_node(name);
  node->set_peer_address(peer);
  node->set_data_address(data);
}

TEST(DrillTest, LinksAreTheAddressesOfTheOtherNodes) {
  coordinator::GetStatusReply status;
  AddNode(status, "n0", "10.0.0.1:7100", "10.0.0.1:7200");
  AddNode(status, "n1", "10.0.0.2:7100", "127.0.0.1:7200");
  AddNode(status, "n2", "", "10.0.0.3:7200");
  AddNode(status, "n3", "[fd00::4]:7100", "unix:/run/d.sock");
  EXPECT_THAT(LinksOf(status, "n0", "").value(), ElementsAre("10.0.0.2", "10.0.0.3", "fd00::4"));
  EXPECT_THAT(LinksOf(status, "n1", "").value(), ElementsAre("10.0.0.1", "10.0.0.3", "fd00::4"));
  EXPECT_THAT(LinksOf(status, "n0", "n3").value(), ElementsAre("fd00::4"));
  EXPECT_THAT(LinksOf(status, "n3", "n4").error().message(), HasSubstr("there is no link to cut"));
  AddNode(status, "n4", "no address", "");
  EXPECT_THAT(LinksOf(status, "n0", "").error().message(), HasSubstr("n4"));
}

TEST(DrillTest, NodesWithoutLinksAreRefused) {
  coordinator::GetStatusReply status;
  AddNode(status, "n0", "10.0.0.1:7100", "10.0.0.1:7200");
  AddNode(status, "n1", "unix:/run/p.sock", "127.0.0.1:7200");
  AddNode(status, "n2", "[::1]:7100", "localhost:7200");
  const auto addresses = LinksOf(status, "n0", "");
  ASSERT_FALSE(addresses.has_value());
  EXPECT_EQ(addresses.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(addresses.error().message(), HasSubstr("no link to cut"));
}

DrillReport Recovered() {
  DrillReport report;
  report.what = "rank 1 is killed";
  report.target = "rank 1 on n1";
  report.detect_ms = 200;
  report.recover_ms = 3000;
  report.lost_steps = 1;
  return report;
}

TEST(DrillTest, MissedObjectivesAreReported) {
  const DrillObjective strict = ParseDrillObjective("detect=100ms,recover=2s,lost-steps=0").value();
  DrillReport report = Recovered();
  Judge(strict, &report);
  EXPECT_THAT(report.missed, ElementsAre(HasSubstr("detect: 0.20s"), HasSubstr("recover: 3.00s"),
                                         HasSubstr("lost-steps: 1 instead of at most 0")));
  report = Recovered();
  Judge(ParseDrillObjective("detect=200ms,recover=3s,lost-steps=1").value(), &report);
  EXPECT_THAT(report.missed, IsEmpty());
  report = DrillReport{};
  Judge(strict, &report);
  EXPECT_THAT(report.missed,
              ElementsAre(HasSubstr("detect: did not happen"), HasSubstr("recover: did not happen"),
                          HasSubstr("lost-steps: unknown")));
}

TEST(DrillTest, WithoutAnObjectiveAnExactRecoveryIsRequired) {
  DrillReport report;
  Judge({}, &report);
  EXPECT_THAT(report.missed, ElementsAre(HasSubstr("recover")));
  report = Recovered();
  report.bytes = BytesVerdict::kDiffer;
  Judge({}, &report);
  EXPECT_THAT(report.missed, ElementsAre(HasSubstr("bytes")));
}

TEST(DrillTest, ThePageIsCompleteAndEscaped) {
  DrillReport report = Recovered();
  report.what = "<script>alert(1)</script>";
  report.notes = {"a & b"};
  const std::string page = DrillPage("lm", {}, {report, report});
  EXPECT_THAT(page, Not(HasSubstr("<script")));
  EXPECT_THAT(page, HasSubstr("&lt;script"));
  EXPECT_THAT(page, HasSubstr("a &amp; b"));
  EXPECT_THAT(page, HasSubstr("injected 0.00s"));
  EXPECT_THAT(page, HasSubstr("detected 0.20s"));
  EXPECT_THAT(page, HasSubstr("first step 3.00s"));
  EXPECT_THAT(page, Not(HasSubstr("stopped")));  // the job was not stopped
}

TEST(DrillTest, JsonHasNullForUnknownValues) {
  const holdfast::Json json = DrillJson(Recovered());
  EXPECT_EQ(json["detect_ms"], 200);
  EXPECT_TRUE(json["decide_ms"].is_null());
  EXPECT_TRUE(json["incident"].is_null());
  EXPECT_TRUE(json["restored"].is_null());
  EXPECT_TRUE(json["bytes_equal"].is_null());
  EXPECT_EQ(json["passed"], true);
}

}  // namespace
}  // namespace holdfast::faults
