// Phase hints: the counts that the agent reads in shared memory, whatever happens to the
// connection.

#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "tests/client/core/client_fixture.h"

namespace holdfast::client {
namespace {

class PhaseTest : public ClientFixture {
 protected:
  agent::PhaseHint& Hint() {
    return agent_->segment()->control().phases[HOLDFAST_PHASE_COLLECTIVE];
  }
  void Begin() { holdfast_phase_begin(client_, HOLDFAST_PHASE_COLLECTIVE); }
  void End() { holdfast_phase_end(client_, HOLDFAST_PHASE_COLLECTIVE); }
};

TEST_F(PhaseTest, TheAgentSeesPhasesThatNest) {
  agent_->Start();
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  EXPECT_EQ(Hint().open, 0U);
  Begin();
  EXPECT_EQ(Hint().open, 1U);
  Begin();
  EXPECT_EQ(Hint().open, 2U);
  End();
  EXPECT_EQ(Hint().open, 1U);
  End();
  EXPECT_EQ(Hint().open, 0U);
  End();
  EXPECT_EQ(Hint().open, 0U) << "an end without a begin has no effect";
  Begin();
  EXPECT_EQ(Hint().open, 1U);
  EXPECT_EQ(Hint().begun, 3U);
  End();
}

TEST_F(PhaseTest, InvalidPhasesHaveNoEffect) {
  holdfast_phase_begin(nullptr, HOLDFAST_PHASE_COLLECTIVE);
  holdfast_phase_end(nullptr, HOLDFAST_PHASE_COLLECTIVE);
  agent_->Start();
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  for (uint32_t phase : {0U, agent::kPhasesMax, agent::kPhasesMax + 1, ~0U}) {
    holdfast_phase_begin(client_, phase);
    holdfast_phase_end(client_, phase);
  }
  const auto* bytes = reinterpret_cast<const char*>(agent_->segment()->control().phases);
  for (size_t i = 0; i < 64UL * (agent::kPhasesMax + 2); ++i) ASSERT_EQ(bytes[i], 0) << i;
}

TEST_F(PhaseTest, ConcurrentThreadsLeaveTheRightCount) {
  agent_->Start();
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  Begin();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int turn = 0; turn < 20'000; ++turn) {
        Begin();
        End();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Hint().open, 1U);
  EXPECT_EQ(Hint().begun, 80'001U);
  End();
  EXPECT_EQ(Hint().open, 0U);
}

TEST_F(PhaseTest, WithoutAnAgentPhasesAreCountedForTheNextOne) {
  options_.start_offline = 1;
  options_.connect_timeout_ms = 50;
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  Begin();
  agent_->Start();
  ASSERT_TRUE(Eventually([&] { return Connected(); }));
  EXPECT_TRUE(Eventually([&] { return Hint().open == 1; }));
  // The agent dies, a phase ends and another begins, with the same memory and with a new one.
  for (bool same_memory : {true, false}) {
    agent_->Stop();
    ASSERT_TRUE(Eventually([&] { return !Connected(); }));
    End();
    Begin();
    Begin();
    if (same_memory) {
      Hint().open = 0;  // as an agent does when it welcomes a trainer
    } else {
      agent_->ForgetSegment();
    }
    agent_->Start();
    ASSERT_TRUE(Eventually([&] { return Connected(); }));
    EXPECT_TRUE(Eventually([&] { return Hint().open == (same_memory ? 2U : 3U); }));
  }
  for (int i = 0; i < 3; ++i) End();
  EXPECT_EQ(Hint().open, 0U);
}

TEST_F(PhaseTest, ThreadsContinueWhileTheMemoryIsReplaced) {
  agent_->Start();
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  std::atomic<bool> stop{false};
  std::thread trainer([&] {
    while (!stop) {
      Begin();
      End();
    }
  });
  for (int i = 0; i < 5; ++i) {
    agent_->Stop();
    agent_->ForgetSegment();
    agent_->Start();
    ASSERT_TRUE(Eventually([&] { return Connected(); }));
  }
  stop = true;
  trainer.join();
  EXPECT_TRUE(Eventually([&] { return Hint().open == 0; }));
}

TEST_F(PhaseTest, AForkedChildPublishesNothing) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer allows no threads in a forked child";
#endif
  agent_->Start();
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  Begin();
  const pid_t child = ::fork();
  if (child == 0) {
    Begin();
    End();
    End();
    ::_exit(0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(Hint().open, 1U);
  EXPECT_EQ(Hint().begun, 1U);
  End();
  EXPECT_EQ(Hint().open, 0U);
}

}  // namespace
}  // namespace holdfast::client
