#include "coordinator/restart/incidents.h"
#include "tests/coordinator/restart/modules/run_module_test.h"

namespace holdfast::coord {
namespace {
using IncidentsModule = RunModuleTest;

TEST_F(IncidentsModule, AStageIsRecordedOnce) {
  IncidentRecord& incident = OpenIncident(context, "gpt", FailureOn(1));
  Pass(seconds(1));
  MarkIncidents(context, "gpt", &IncidentRecord::stop_ms);
  EXPECT_EQ(incident.stop_ms, 1000);
  Pass(seconds(1));
  MarkIncidents(context, "gpt", &IncidentRecord::stop_ms);
  EXPECT_EQ(incident.stop_ms, 1000);
  EXPECT_EQ(Added<PutIncident>().size(), 1U);
  CloseIncidents(context, "gpt", IncidentState::kRecovered);
  EXPECT_EQ(incident.state, IncidentState::kRecovered);
  MarkIncidents(context, "gpt", &IncidentRecord::restore_ms);
  EXPECT_EQ(incident.restore_ms, std::nullopt);
}

TEST_F(IncidentsModule, ARepeatedNoteIsDroppedForTenMinutes) {
  NoteIncident(context, "gpt", FailureOn(1), "none");
  NoteIncident(context, "gpt", FailureOn(1), "none");
  NoteIncident(context, "other", FailureOn(1), "none");
  EXPECT_EQ(table.incidents.size(), 2U);
  Pass(std::chrono::minutes(11));
  NoteIncident(context, "gpt", FailureOn(1), "none");
  EXPECT_EQ(table.incidents.size(), 3U);
  EXPECT_EQ(table.incidents.rbegin()->second.state, IncidentState::kNoted);
}

TEST_F(IncidentsModule, TheOldestAreErasedBeyondTheMaximum) {
  options.incidents_max = 2;
  for (uint32_t i = 0; i < 3; ++i) OpenIncident(context, "gpt", FailureOn(i));
  EXPECT_EQ(table.incidents.size(), 2U);
  EXPECT_EQ(table.incidents.begin()->first, 2U);
  ASSERT_EQ(Added<EraseIncident>().size(), 1U);
  EXPECT_EQ(Added<EraseIncident>()[0].id, 1U);
}

TEST_F(IncidentsModule, ANodeIsBlamedOnceByEachJobForAWeek) {
  using ::testing::ElementsAre;
  using ::testing::Pair;
  for (int i = 0; i < 3; ++i) OpenIncident(context, "gpt", FailureOn(1));
  OpenIncident(context, "bert", FailureOn(2));
  Pass(std::chrono::hours(24));
  OpenIncident(context, "llama", FailureOn(1));
  Failure many = FailureOn(0);
  many.nodes = {"n0", "n1", "n2"};  // a switch, probably
  OpenIncident(context, "bert", many);
  EXPECT_THAT(BlamedNodes(context), ElementsAre(Pair("n1", 2), Pair("n2", 1)));
  Pass(std::chrono::hours(6 * 24 + 1));
  EXPECT_THAT(BlamedNodes(context), ElementsAre(Pair("n1", 1)));
}

TEST_F(IncidentsModule, OnlyDamageAndFindingsWithAKindAreNoted) {
  NoteFinding(context, {"gpt", "n1", UnavailableError("slow")});
  EXPECT_TRUE(table.incidents.empty());
  NoteFinding(context, {"gpt", "n1", DataLossError("bad chunk")});
  NoteFinding(context, {"gpt", "", DataLossError("differs"), "replicas differ", {Rank{1}}});
  ASSERT_EQ(table.incidents.size(), 2U);
  EXPECT_EQ(table.incidents.at(1).kind, "damage");
  EXPECT_EQ(table.incidents.at(2).kind, "replicas differ");
}

}  // namespace
}  // namespace holdfast::coord
