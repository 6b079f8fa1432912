#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "tests/agent/pipeline/harness.h"
#include "tests/agent/server/cluster.h"

// The agent dies at each of its crash points during a run and is restarted. Every version that was
// reported as committed must still exist, bit for bit.

namespace holdfast::agent {
namespace {

constexpr uint64_t kTensorBytes = 2'500'000;

class AgentCrash : public ::testing::TestWithParam<const char*> {
 protected:
  Result<TestTrainer> Connect(const TestTrainer::Options& options) {
    Result<TestTrainer> trainer = Fail(UnavailableError("not tried"));
    Eventually([&] {
      trainer = TestTrainer::Connect(cluster_.Socket(0), options);
      return trainer || trainer.error().code() != ErrorCode::kUnavailable;
    });
    return trainer;
  }
  // Saves step after step until the agent dies; returns the newest step that was committed.
  uint64_t SaveUntilDeath() {
    uint64_t committed = 0;
    auto trainer = Connect({});
    if (!trainer) return 0;
    for (uint64_t step = 1; step <= 50 && cluster_.agent(0).running(); ++step) {
      if (!trainer->Save(step, kTensorBytes)) break;
      if (!trainer->AwaitNotice(NoticeKind::kCommitted, step, Tier::kMemory)) break;
      committed = step;
      // Without a pause a fast run never reaches the crash points of the disk tier.
      static_cast<void>(trainer->AwaitNotice(NoticeKind::kCommitted, step, Tier::kDisk, 2'000));
    }
    return committed;
  }
  void ExpectKilled() {
    const int status = cluster_.agent(0).Wait(20'000);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status << "\n"
                                                                    << cluster_.AgentLog(0);
  }
  void ExpectRestores(const std::string& run_id, uint64_t at_least) {
    auto trainer = Connect({.run_id = run_id});
    ASSERT_TRUE(trainer) << trainer.error().ToString();
    auto found = trainer->FindRestore({}, 20'000);
    ASSERT_TRUE(found) << found.error().ToString();
    if (at_least == 0 && ErrorFromNumber(found->code) == ErrorCode::kNotFound) return;
    ASSERT_EQ(found->code, 0U) << GetText(found->text) << cluster_.AgentLog(0);
    EXPECT_GE(found->step, at_least);
    const ShardIdentity identity{
        "job", {Incarnation{found->incarnation}, Step{found->step}}, Rank{0}, 1};
    const auto image = MakeImage(identity, kTensorBytes);
    ASSERT_EQ(found->image_bytes, image.size());
    EXPECT_TRUE(std::equal(image.begin(), image.end(), trainer->slot(found->slot).begin()));
    // The next save works.
    const uint64_t step = found->step + 1;
    ASSERT_TRUE(trainer->EndSave(found->slot, found->step, MessageType::kEndRestore).ok());
    ASSERT_TRUE(trainer->Save(step, kTensorBytes));
    EXPECT_TRUE(trainer->AwaitNotice(NoticeKind::kCommitted, step, Tier::kDisk));
  }

  TestCluster cluster_;
};

TEST_P(AgentCrash, NoCommittedVersionIsLost) {
  ASSERT_TRUE(cluster_.StartCoordinator().ok());
  // The agent dies at the third pass of the crash point, after two complete versions.
  Status started = cluster_.StartAgent(0, std::string(GetParam()) + ":3");
  ASSERT_TRUE(started.ok()) << started.ToString();
  const uint64_t committed = SaveUntilDeath();
  ExpectKilled();
  started = cluster_.StartAgent(0);
  ASSERT_TRUE(started.ok()) << started.ToString();
  ExpectRestores("run-2", committed);
}

INSTANTIATE_TEST_SUITE_P(Points, AgentCrash,
                         ::testing::Values("agent.after_begin_save", "agent.mid_copy",
                                           "agent.before_seal", "agent.after_seal",
                                           "agent.before_report_memory", "agent.before_report_disk",
                                           "agent.after_report_disk"),
                         [](const auto& point) {
                           std::string name = point.param;
                           for (char& c : name) {
                             if (c == '.') c = '_';
                           }
                           return name;
                         });

class AgentRestoreCrash : public AgentCrash {};

TEST_F(AgentRestoreCrash, DuringARestore) {
  ASSERT_TRUE(cluster_.StartCoordinator().ok());
  ASSERT_TRUE(cluster_.StartAgent(0).ok());
  {
    auto trainer = Connect({});
    ASSERT_TRUE(trainer) << trainer.error().ToString();
    ASSERT_TRUE(trainer->Save(1, kTensorBytes));
    ASSERT_TRUE(trainer->AwaitNotice(NoticeKind::kCommitted, 1, Tier::kDisk));
  }
  cluster_.agent(0).Kill();
  cluster_.KillKeeper(0);
  ASSERT_TRUE(cluster_.StartAgent(0, "agent.mid_restore").ok());
  auto trainer = Connect({.run_id = "run-2"});
  // The agent may die before it sends the Welcome: preparation begins with the join.
  if (trainer) static_cast<void>(trainer->FindRestore().has_value());
  ExpectKilled();
  if (trainer) trainer->HangUp();
  ASSERT_TRUE(cluster_.StartAgent(0).ok());
  ExpectRestores("run-2", 1);
}

}  // namespace
}  // namespace holdfast::agent
