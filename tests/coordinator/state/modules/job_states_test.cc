#include "coordinator/state/job_states.h"
#include "tests/coordinator/state/modules/module_test.h"

namespace holdfast::coord {
namespace {
using JobStatesModule = ModuleTest;

TEST_F(JobStatesModule, AllSubscribersGetAChangeAndEachItsGroup) {
  MakeGroup(1);
  AddCommitted(V(2, 10), {Tier::kMemory});
  Add(V(2, 11)).phase = Phase::kAborted;
  job().job_state_changed = true;
  SendJobStates(context, job());
  for (const NodeIndex node : {0U, 1U}) {
    const std::vector<JobState> sent = SentTo<JobState>(node);
    ASSERT_EQ(sent.size(), 1U);
    EXPECT_EQ(sent[0].committed[Tier::kMemory], V(2, 10));
    EXPECT_THAT(sent[0].aborted, ::testing::ElementsAre(V(2, 11)));
    EXPECT_EQ(sent[0].group->members().size(), 2U);
  }
  SendJobStates(context, job());
  EXPECT_EQ(Added<Send>().size(), 2U);
}

TEST_F(JobStatesModule, TheNewestCommitsAreSent) {
  for (uint64_t step = 10; step < 30; ++step) {
    AddCommitted(V(2, step), {step == 11 ? Tier::kDisk : Tier::kMemory}).commit_digest = step;
  }
  job().job_state_changed = true;
  SendJobStates(context, job());
  const std::vector<JobState> states = SentTo<JobState>(0);
  std::vector<uint64_t> sent;
  for (const VersionCommit& commit : states.at(0).commits) {
    EXPECT_EQ(commit.version, V(2, commit.digest));
    EXPECT_EQ(commit.world, 2U);
    sent.push_back(commit.digest);
  }
  // The newest on disk, the newest in memory, and eight others.
  EXPECT_THAT(sent, ::testing::ElementsAre(11, 21, 22, 23, 24, 25, 26, 27, 28, 29));
}

TEST_F(JobStatesModule, OneNodeCanGetItWithoutAChange) {
  job().job_state_to = {1};
  SendJobStates(context, job());
  EXPECT_TRUE(SentTo<JobState>(0).empty());
  EXPECT_EQ(SentTo<JobState>(1).size(), 1U);
  Lose(1);
  job().job_state_to = {1};
  SendJobStates(context, job());
  EXPECT_EQ(Added<Send>().size(), 1U);
}

}  // namespace
}  // namespace holdfast::coord
