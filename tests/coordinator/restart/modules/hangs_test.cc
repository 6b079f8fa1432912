#include "coordinator/restart/hangs.h"
#include "tests/coordinator/restart/modules/run_module_test.h"

namespace holdfast::coord {
namespace {
class HangsModule : public RunModuleTest {
 protected:
  FaultDetected Hang(int64_t lasting_ms) {
    FaultDetected event;
    event.job = "gpt";
    event.incarnation = Incarnation{2};
    event.kind = "hang";
    event.what = "rank 1 does not communicate";
    event.ranks = {Rank{1}};
    event.nodes = {"n1"};
    event.action = FaultAction::kRestart;
    event.hang = event.stuck = true;
    event.lasting_ms = lasting_ms;
    event.step = 10;
    return event;
  }
  bool Restarted() { return run().record.launches > 1; }
};

TEST_F(HangsModule, AnIncidentComesAtOnceAndTheRestartLater) {
  HandleFault(context, Hang(1000));
  HandleFault(context, Hang(2000));
  EXPECT_EQ(table.incidents.size(), 1U);
  EXPECT_EQ(table.incidents.at(1).plan, "a restart if it lasts for 60 s");
  EXPECT_FALSE(Restarted());
  HandleFault(context, Hang(60'000));
  EXPECT_TRUE(Restarted());
}

TEST_F(HangsModule, RanksThatAreElsewhereGetMorePatience) {
  FaultDetected event = Hang(599'999);
  event.stuck = false;
  HandleFault(context, event);
  EXPECT_FALSE(Restarted());
  event.lasting_ms = 600'000;
  HandleFault(context, event);
  EXPECT_TRUE(Restarted());
}

TEST_F(HangsModule, PatienceGrowsWithPausesAndRepeatedSteps) {
  FaultDetected event = Hang(60'000);
  event.longest_pause_ms = 90'000;
  HandleFault(context, event);
  EXPECT_FALSE(Restarted());
  table.hangs["gpt"].restart = HangRestart{10, seconds(60)};
  event.longest_pause_ms = 0;
  event.lasting_ms = 119'000;
  HandleFault(context, event);
  EXPECT_FALSE(Restarted());
  event.lasting_ms = 120'000;
  HandleFault(context, event);
  EXPECT_TRUE(Restarted());
}

TEST_F(HangsModule, TheConfiguredActionLimitsWhatIsDone) {
  run().record.spec.detect_action = DetectAction::kAlert;
  HandleFault(context, Hang(60'000));
  EXPECT_FALSE(Restarted());
  EXPECT_EQ(table.incidents.size(), 1U);
  run().record.spec.detect_action = DetectAction::kOff;
  FaultDetected other = Hang(60'000);
  other.kind = "another hang";
  HandleFault(context, other);
  EXPECT_EQ(table.incidents.size(), 1U);
}

TEST_F(HangsModule, ASuspectedHangRestartsOnlyWithTheRunsOwnPatience) {
  FaultDetected event = Hang(100'000);
  event.suspected = true;
  HandleFault(context, event);
  EXPECT_FALSE(Restarted());
  run().record.spec.hang_after_ms = 100'000;
  HandleFault(context, event);
  EXPECT_TRUE(Restarted());
}

TEST_F(HangsModule, FaultsOfAnOldIncarnationAreIgnored) {
  FaultDetected event = Hang(60'000);
  event.incarnation = Incarnation{1};
  HandleFault(context, event);
  EXPECT_FALSE(Restarted());
  EXPECT_TRUE(table.incidents.empty());
}

}  // namespace
}  // namespace holdfast::coord
