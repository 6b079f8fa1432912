#include "coordinator/restart/requests.h"
#include "tests/coordinator/restart/modules/run_module_test.h"

namespace holdfast::coord {
namespace {
class RequestsModule : public RunModuleTest {
 protected:
  ErrorCode Start() {
    RunRequested event;
    event.request = 7;
    event.spec = run().record.spec;
    StartRun(context, event);
    return Added<Reply>().back().outcome.code();
  }
  ErrorCode Stop(const std::string& job = "gpt") {
    StopRun(context, {7, job, 1000});
    return Added<Reply>().back().outcome.code();
  }
  ErrorCode Quarantine(const std::string& node, bool set) {
    ChangeQuarantine(context, {7, node, set, "loose cable"});
    return Added<Reply>().back().outcome.code();
  }
};

TEST_F(RequestsModule, AJobHasOneRunThatHasNotEnded) {
  EXPECT_EQ(Start(), ErrorCode::kAlreadyExists);
  run().record.phase = RunPhase::kFinished;
  EXPECT_EQ(Start(), ErrorCode::kOk);
  EXPECT_EQ(run().record.serial, 2U);
  EXPECT_EQ(run().record.launches, 0U);
  EXPECT_EQ(run().record.nodes.size(), 3U);  // they have the shards
}

TEST_F(RequestsModule, AStopWaitsForTheNewestVersionInMemory) {
  table.progress["gpt"].memory = VersionId{Incarnation{2}, Step{10}};
  EXPECT_EQ(Stop(), ErrorCode::kOk);
  EXPECT_EQ(run().record.phase, RunPhase::kStopping);
  EXPECT_EQ(run().stop_target, (VersionId{Incarnation{2}, Step{10}}));
  EXPECT_EQ(run().stop_at - context.at.now, seconds(1));
  run().record.phase = RunPhase::kWaiting;
  EXPECT_EQ(Stop(), ErrorCode::kOk);
  EXPECT_EQ(run().record.phase, RunPhase::kStopped);
  EXPECT_EQ(Stop(), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(Stop("other"), ErrorCode::kNotFound);
}

TEST_F(RequestsModule, AReleaseClearsStrikesAndErrorsOfTheNode) {
  EXPECT_EQ(Quarantine("n9", true), ErrorCode::kNotFound);
  EXPECT_EQ(Quarantine("n1", true), ErrorCode::kOk);
  EXPECT_EQ(table.quarantine.at("n1").why, "loose cable");
  run().strikes["n1"] = 2;
  table.suspects["n1"] = {"n1", "Xid 79", context.at.wall_nanos};
  EXPECT_EQ(Quarantine("n1", false), ErrorCode::kOk);
  EXPECT_TRUE(table.quarantine.empty());
  EXPECT_TRUE(table.suspects.empty());
  EXPECT_TRUE(run().strikes.empty());
}

}  // namespace
}  // namespace holdfast::coord
