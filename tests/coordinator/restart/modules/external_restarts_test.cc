#include "coordinator/restart/external_restarts.h"
#include "tests/coordinator/restart/modules/run_module_test.h"

namespace holdfast::coord {
namespace {
class ExternalRestartsModule : public RunModuleTest {
 protected:
  void SetUp() override {
    options.has_restart_command = true;
    IncidentRecord& incident = OpenIncident(context, "other", FailureOn(1));
    FaultDetected event;
    event.job = "other";
    event.incarnation = Incarnation{4};
    started_ = StartRestartCommand(context, event, incident);
    AdvanceRestartCommands(context);
  }
  size_t Runs() { return Added<RunRestartCommand>().size(); }
  void End(bool ok) { RecordCommandEnd(context, {1, ok, "ended"}); }
  IncidentRecord& Incident() { return table.incidents.at(1); }

  bool started_ = false;
};

TEST_F(ExternalRestartsModule, TheCommandRunsOnceForEachIncarnation) {
  EXPECT_TRUE(started_);
  EXPECT_EQ(Runs(), 1U);
  FaultDetected again;
  again.job = "other";
  again.incarnation = Incarnation{4};
  IncidentRecord second;
  EXPECT_FALSE(StartRestartCommand(context, again, second));
  EXPECT_EQ(second.plan, "none: see incident 1");
}

TEST_F(ExternalRestartsModule, AFailedCommandIsRepeatedWithPausesUntilTheLastAttempt) {
  for (uint32_t attempt = 1; attempt < options.command_attempts; ++attempt) {
    End(false);
    AdvanceRestartCommands(context);
    EXPECT_EQ(Runs(), attempt);
    Pass(options.command_retry_first * (1U << (attempt - 1)));
    AdvanceRestartCommands(context);
    EXPECT_EQ(Runs(), attempt + 1);
  }
  End(false);
  EXPECT_EQ(Incident().state, IncidentState::kGivenUp);
  Pass(std::chrono::hours(1));
  AdvanceRestartCommands(context);
  EXPECT_EQ(Runs(), options.command_attempts);
}

TEST_F(ExternalRestartsModule, ItIsNotRepeatedOnceTheJobIsBackOrTheIncidentIsAcknowledged) {
  EndExternalRestart(context, "other", Incarnation{5});
  End(false);
  Pass(std::chrono::hours(1));
  AdvanceRestartCommands(context);
  EXPECT_EQ(Runs(), 1U);
  AcknowledgeIncident(context, {7, 1, "done"});
  EXPECT_EQ(Incident().state, IncidentState::kAcknowledged);
  EXPECT_EQ(Incident().plan, "acknowledged: done");
  AcknowledgeIncident(context, {8, 99, ""});
  EXPECT_EQ(Added<Reply>().at(1).outcome.code(), ErrorCode::kNotFound);
}

TEST_F(ExternalRestartsModule, ANewFaultWaitsForTheCooldown) {
  End(true);
  IncidentRecord& next = OpenIncident(context, "other", FailureOn(2));
  FaultDetected event;
  event.job = "other";
  event.incarnation = Incarnation{5};
  EXPECT_TRUE(StartRestartCommand(context, event, next));
  AdvanceRestartCommands(context);
  EXPECT_EQ(Runs(), 1U);
  Pass(options.command_cooldown);
  AdvanceRestartCommands(context);
  EXPECT_EQ(Runs(), 2U);
}

TEST_F(ExternalRestartsModule, AfterALoadTheCommandOfAnOpenIncidentRunsAgain) {
  table.external_restarts.clear();
  LoadExternalRestarts(context, {});
  Pass(options.command_cooldown);
  AdvanceRestartCommands(context);
  EXPECT_EQ(Runs(), 2U);
}

}  // namespace
}  // namespace holdfast::coord
