#include "coordinator/restart/self_tests.h"

#include "coordinator/restart/requests.h"
#include "tests/coordinator/restart/modules/run_module_test.h"

namespace holdfast::coord {
namespace {
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class SelfTestsModule : public RunModuleTest {
 protected:
  void Quarantine(const std::string& node) {
    ChangeQuarantine(context, {7, node, true, "loose cable"});
  }
  void Release(const std::string& node, bool test = true) {
    ChangeQuarantine(context, {7, node, false, "", test});
    EXPECT_TRUE(Added<Reply>().back().outcome.ok());
  }
  /// Reports the result of the last self-test of the node.
  void Report(const std::string& node, std::vector<SelfTested::Part> parts) {
    const auto pending = table.self_tests.find(node);
    const uint64_t number = pending == table.self_tests.end() ? 1 : pending->second;
    RecordSelfTest(context, {node, table.nodes.at(node).agent_start, number, std::move(parts)});
  }
  static std::vector<SelfTested::Part> Passed() {
    return {{"cpu", false, "passed: 2 cores"}, {"disk /data", false, "not tested: it is full"}};
  }
  static std::vector<SelfTested::Part> Failed() {
    return {{"cpu", true, "FAILED: core 1 returns wrong results"}, {"memory", false, "passed: 1"}};
  }
};

TEST_F(SelfTestsModule, ANodeLeavesQuarantineWhenItsSelfTestHasPassed) {
  Quarantine("n3");
  run().strikes["n3"] = 2;
  Release("n3");
  EXPECT_TRUE(table.quarantine.contains("n3"));
  EXPECT_TRUE(table.self_tests.contains("n3"));
  Report("n3", Passed());
  EXPECT_THAT(table.quarantine, IsEmpty());
  EXPECT_THAT(table.self_tests, IsEmpty());
  EXPECT_THAT(run().strikes, IsEmpty());
  EXPECT_EQ(Added<EraseQuarantine>().size(), 1U);
  ASSERT_EQ(table.incidents.size(), 1U);
  const IncidentRecord& incident = table.incidents.at(1);
  EXPECT_EQ(incident.kind, "self-test");
  EXPECT_EQ(incident.state, IncidentState::kNoted);
  EXPECT_EQ(incident.what, "node n3 has passed its self-test");
  EXPECT_THAT(incident.evidence,
              ElementsAre("cpu: passed: 2 cores", "disk /data: not tested: it is full"));
  EXPECT_THAT(BlamedNodes(context), IsEmpty()) << "a node that passes is not blamed";
}

TEST_F(SelfTestsModule, ANodeThatFailsItsSelfTestStaysInQuarantine) {
  Quarantine("n3");
  Release("n3");
  Report("n3", Failed());
  ASSERT_TRUE(table.quarantine.contains("n3"));
  EXPECT_EQ(table.quarantine.at("n3").why,
            "its self-test failed: cpu: FAILED: core 1 returns wrong results");
  EXPECT_EQ(Added<PutQuarantine>().size(), 2U) << "the reason is stored";
  EXPECT_TRUE(Added<EraseQuarantine>().empty());
  EXPECT_THAT(table.self_tests, IsEmpty());
  ASSERT_EQ(table.incidents.size(), 1U);
  EXPECT_THAT(table.incidents.at(1).evidence, testing::SizeIs(2));
  EXPECT_THAT(table.incidents.at(1).plan, HasSubstr("holdfast quarantine n3 --release"));
  EXPECT_EQ(BlamedNodes(context).at("n3"), 1U);
  // The part was replaced.
  Release("n3");
  Report("n3", Passed());
  EXPECT_THAT(table.quarantine, IsEmpty());
  EXPECT_EQ(table.incidents.size(), 2U);
}

TEST_F(SelfTestsModule, AReleaseWithoutATestIsImmediate) {
  Quarantine("n3");
  Release("n3", /*test=*/false);
  EXPECT_THAT(table.quarantine, IsEmpty());
  EXPECT_THAT(table.self_tests, IsEmpty());
  // Also while a test runs. Its result then changes nothing.
  Quarantine("n3");
  Release("n3");
  const uint64_t number = table.self_tests.at("n3");
  Release("n3", /*test=*/false);
  EXPECT_THAT(table.quarantine, IsEmpty());
  RecordSelfTest(context, {"n3", 1, number, Failed()});
  EXPECT_THAT(table.quarantine, IsEmpty());
  // A node that is not in quarantine needs no test.
  Release("n2");
  EXPECT_THAT(table.self_tests, IsEmpty());
}

TEST_F(SelfTestsModule, AnAgentWithoutSelfTestsIsReleased) {
  Quarantine("n3");
  Release("n3");
  Report("n3", {});
  EXPECT_THAT(table.quarantine, IsEmpty());
  EXPECT_THAT(table.incidents, IsEmpty());
}

TEST_F(SelfTestsModule, ResultsOfOtherTestsDoNotCount) {
  Quarantine("n3");
  Release("n3");
  const uint64_t first = table.self_tests.at("n3");
  // The operator releases the node once more, after a repair.
  Release("n3");
  EXPECT_GT(table.self_tests.at("n3"), first);
  RecordSelfTest(context, {"n3", 1, first, Passed()});
  EXPECT_TRUE(table.quarantine.contains("n3"));
  RecordSelfTest(context, {"n3", 2, table.self_tests.at("n3"), Passed()});
  EXPECT_TRUE(table.quarantine.contains("n3")) << "another start of the agent";
  RecordSelfTest(context, {"n9", 1, table.self_tests.at("n3"), Passed()});
  EXPECT_TRUE(table.quarantine.contains("n3"));
  // A new quarantine ends the release.
  Quarantine("n3");
  EXPECT_THAT(table.self_tests, IsEmpty());
  RecordSelfTest(context, {"n3", 1, first + 1, Passed()});
  EXPECT_TRUE(table.quarantine.contains("n3"));
}

TEST_F(SelfTestsModule, ASuspectNodeIsTestedBeforeItIsReleased) {
  table.suspects["n2"] = {"n2", "Xid 79", context.at.wall_nanos};
  Release("n2");
  EXPECT_TRUE(table.suspects.contains("n2"));
  Report("n2", Failed());
  EXPECT_TRUE(table.suspects.contains("n2"));
  EXPECT_TRUE(table.quarantine.contains("n2"));
  Release("n2");
  Report("n2", Passed());
  EXPECT_THAT(table.suspects, IsEmpty());
  EXPECT_THAT(table.quarantine, IsEmpty());
}

TEST_F(SelfTestsModule, TheTestWaitsUntilTheNodeIsBack) {
  Quarantine("n3");
  Lose(3);
  Release("n3");
  EXPECT_TRUE(table.quarantine.contains("n3"));
  node(3).attached = true;
  node(3).agent_start = 2;  // another start of the agent tests the node
  Report("n3", Passed());
  EXPECT_THAT(table.quarantine, IsEmpty());
}

}  // namespace
}  // namespace holdfast::coord
