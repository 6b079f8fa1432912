#include "coordinator/restart/run_queries.h"
#include "tests/coordinator/restart/modules/run_module_test.h"

namespace holdfast::coord {
namespace {
using RunQueriesModule = RunModuleTest;

TEST_F(RunQueriesModule, WorkersAreListedByRankAndEndedOnesAsTheyEnded) {
  End(1, 3, 0);
  node(1).workers.clear();
  const std::vector<RunStatus> runs = RunsOf(context, "");
  ASSERT_EQ(runs.size(), 1U);
  ASSERT_EQ(runs[0].workers.size(), 3U);
  EXPECT_EQ(runs[0].workers[1].first, "n1");
  EXPECT_EQ(runs[0].workers[1].second.exit_code, 3);
  EXPECT_THAT(runs[0].spares, ::testing::ElementsAre("n3"));
  EXPECT_TRUE(RunsOf(context, "other").empty());
}

TEST_F(RunQueriesModule, IncidentsAreListedNewestFirst) {
  OpenIncident(context, "gpt", FailureOn(1));
  OpenIncident(context, "other", FailureOn(2));
  EXPECT_EQ(IncidentsOf(context, "", 0).front().id, 2U);
  ASSERT_EQ(IncidentsOf(context, "gpt", 0).size(), 1U);
  EXPECT_EQ(IncidentsOf(context, "", 1).front().job, "gpt");
  EXPECT_TRUE(IncidentsOf(context, "gpt", 2).empty());
}

}  // namespace
}  // namespace holdfast::coord
