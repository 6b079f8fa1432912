#include "agent/pipeline/parity_service.h"

#include <atomic>
#include <future>
#include <thread>

#include "agent/pipeline/damage_tracker.h"
#include "agent/pipeline/peer_source.h"
#include "agent/pipeline/shard_preparer.h"
#include "tests/agent/pipeline/parts.h"

namespace holdfast::agent {
namespace {

class ParityServiceTest : public PartsTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(PartsTest::SetUp());
    damage_ = std::make_unique<DamageTracker>(*ranks_, *volume_, link_);
    shards_ = std::make_unique<LocalShards>(*ranks_, *volume_, *damage_);
    source_ = std::make_unique<NodePeerSource>("node-0", *ranks_, *shards_, *damage_, peers_,
                                               Clock::Real());
    reach_ = std::make_unique<PeerReach>(peers_, "node-0", Clock::Real());
    parity_ = std::make_unique<ParityService>(ParityTools{.node = "node-0",
                                                          .build_timeout_ms = 10'000,
                                                          .ranks = *ranks_,
                                                          .memory = *memory_,
                                                          .source = *source_,
                                                          .transport = peers_,
                                                          .link = link_,
                                                          .warnings = warnings_,
                                                          .clock = Clock::Real()},
                                              *reach_, background_);
    job_.job = "job";
    job_.incarnation = Incarnation{1};
    job_.group = *GroupPlan::Make({{"node-0", "", 0, {{Rank{0}, kSlotBytes}}},
                                   {"node-1", "elsewhere", 1, {{Rank{1}, kSlotBytes}}}},
                                  1);
  }
  void TearDown() override {
    if (parity_ != nullptr) parity_->Clear();
    background_.Stop();
    PartsTest::TearDown();
  }

  static VersionId At(uint64_t step) { return {Incarnation{1}, Step{step}}; }
  static ShardKey Parity(uint64_t step) { return {"job", At(step), ParityRank(0)}; }
  /// Makes the step the newest one at peer in `job_`, which the caller passes on.
  void CommitAtPeer(uint64_t step) {
    job_.committed[Tier::kMemory] = job_.committed[Tier::kPeer] = At(step);
    job_.target_step[Tier::kPeer] = Step{step + 1};
  }

  FakePeer peers_;
  Executor background_{1, Clock::Real()};
  std::unique_ptr<DamageTracker> damage_;
  std::unique_ptr<LocalShards> shards_;
  std::unique_ptr<NodePeerSource> source_;
  std::unique_ptr<PeerReach> reach_;
  std::unique_ptr<ParityService> parity_;
  JobState job_;
};

// The other member cannot be reached, so the build fails. The report of the failure shows that the
// keeper has tried.
TEST_F(ParityServiceTest, ASaveThatBeginsWakesTheKeeper) {
  const auto rank = Reserve("job", Rank{0});
  ASSERT_TRUE(rank) << rank.error().ToString();
  ranks_->SetJobState(job_);
  parity_->SetJobState(job_);
  for (const uint64_t step : {1, 2}) {
    const VersionId version{Incarnation{1}, Step{step}};
    const ShardKey parity{"job", version, ParityRank(0)};
    EXPECT_FALSE(link_.failed(parity, Tier::kPeer));
    std::vector<FreedSlot> freed;
    ASSERT_TRUE((*rank)->slots.saves().BeginSave(version, 2, 1000, &freed));
    ASSERT_TRUE(Eventually([&] { return link_.failed(parity, Tier::kPeer).has_value(); }));
    EXPECT_TRUE(ranks_->Find("job", ParityRank(0)));
    // The coordinator gives up the version and moves the target past it.
    job_.target_step[Tier::kPeer] = Step{step + 1};
    ranks_->SetJobState(job_);
    parity_->SetJobState(job_);
  }
}

TEST_F(ParityServiceTest, AJobStateThatArrivesAfterTheSaveWakesTheKeeper) {
  const auto rank = Reserve("job", Rank{0});
  ASSERT_TRUE(rank);
  const VersionId version{Incarnation{1}, Step{1}};
  std::vector<FreedSlot> freed;
  parity_->SetJobState(job_);
  ASSERT_TRUE((*rank)->slots.saves().BeginSave(version, 2, 1000, &freed));
  EXPECT_FALSE(link_.failed({"job", version, ParityRank(0)}, Tier::kPeer));
  ranks_->SetJobState(job_);
  EXPECT_TRUE(Eventually([&] {
    return link_.failed({"job", version, ParityRank(0)}, Tier::kPeer).has_value();
  }));
}

// The thread of a keeper that a save wakes may have an older job state than the ranks: the loop
// thread gives the state to one after the other.
TEST_F(ParityServiceTest, AKeeperWithAnOlderJobStateFreesNoVersionThatIsCommittedAtPeer) {
  const auto rank = Reserve("job", Rank{0});
  const auto parity = memory_->ReserveParity("job", ParityRank(0), 2 * kSlotBytes);
  ASSERT_TRUE(rank && parity);
  for (const uint64_t step : {1, 2}) Put(*parity, At(step));
  CommitAtPeer(1);
  parity_->SetJobState(job_);
  CommitAtPeer(2);
  ranks_->SetJobState(job_);
  std::vector<FreedSlot> freed;
  ASSERT_TRUE((*rank)->slots.saves().BeginSave(At(3), 2, 1000, &freed));
  ASSERT_TRUE(Eventually([&] { return link_.failed(Parity(3), Tier::kPeer).has_value(); }));
  EXPECT_TRUE((*parity)->slots.view().Has(At(2)));
  EXPECT_FALSE(link_.WasRemoved(Parity(2), Tier::kMemory));
  EXPECT_TRUE(link_.WasRemoved(Parity(1), Tier::kMemory));
}

// Rank 1 has lost its shard of the first version. Without an order, the keeper would take the
// versions of both ranks in turn for ever.
TEST_F(ParityServiceTest, ANewerVersionWaitsForTheTargetAlthoughARankLacksTheOlderOne) {
  job_.group =
      *GroupPlan::Make({{"node-0", "", 0, {{Rank{0}, kSlotBytes}, {Rank{1}, kSlotBytes}}},
                        {"node-1", "elsewhere", 1, {{Rank{2}, kSlotBytes}, {Rank{3}, kSlotBytes}}}},
                       1);
  ranks_->SetJobState(job_);
  parity_->SetJobState(job_);
  for (const uint32_t number : {0U, 1U}) {
    const auto rank = Reserve("job", Rank{number});
    ASSERT_TRUE(rank);
    std::vector<FreedSlot> freed;
    ASSERT_TRUE((*rank)->slots.saves().BeginSave(At(number + 1), 4, 1000, &freed));
    ASSERT_TRUE(Eventually([&] { return link_.failed(Parity(1), Tier::kPeer).has_value(); }));
  }
  for (int turn = 0; turn < 3; ++turn) {
    std::promise<void> ran;
    ASSERT_TRUE(parity_->Post("job", [&] { ran.set_value(); }));
    ran.get_future().wait();
  }
  EXPECT_FALSE(link_.failed(Parity(2), Tier::kPeer));
  job_.target_step[Tier::kPeer] = Step{2};
  parity_->SetJobState(job_);
  ranks_->SetJobState(job_);
  EXPECT_TRUE(Eventually([&] { return link_.failed(Parity(2), Tier::kPeer).has_value(); }));
}

// A directive waits for the keeper's thread while newer job states arrive.
TEST_F(ParityServiceTest, ALateRestoreOfParityFreesNoVersionThatIsCommittedAtPeer) {
  const auto parity = memory_->ReserveParity("job", ParityRank(0), 2 * kSlotBytes);
  ASSERT_TRUE(parity);
  for (const uint64_t step : {1, 2}) Put(*parity, At(step));
  Executor workers(1, Clock::Real());
  JobTable jobs;
  const RestoreTools tools{
      .reach = {.node = "node-0", .local = *source_, .transport = peers_, .clock = Clock::Real()},
      .volume = *volume_,
      .local = *shards_,
      .link = link_,
      .clock = Clock::Real(),
      .damage = *damage_,
      .workers = workers};
  ShardPreparer preparer({.tools = tools,
                          .wait_ms = 1'000,
                          .loop = loop_,
                          .ranks = *ranks_,
                          .memory = *memory_,
                          .parity = *parity_,
                          .jobs = jobs,
                          .sessions = sessions_});
  const auto apply = [&](uint64_t at_peer) {
    CommitAtPeer(at_peer);
    parity_->SetJobState(jobs.Set(job_));
    ranks_->SetJobState(job_);
  };
  apply(1);
  std::promise<void> free;
  ASSERT_TRUE(parity_->Post("job", [&] { free.get_future().wait(); }));
  PrepareShard prepare{.request = 1, .identity = {"job", At(3), ParityRank(0), 2}};
  prepare.tier = Tier::kPeer;
  prepare.group = job_.group;
  preparer.Apply(prepare);
  apply(2);
  free.set_value();
  ASSERT_TRUE(Eventually([&] {
    loop_.Run();
    return link_.prepared(1).has_value();
  }));
  EXPECT_TRUE((*parity)->slots.view().Has(At(2)));
  EXPECT_FALSE(link_.WasRemoved(Parity(2), Tier::kMemory));
  EXPECT_TRUE(link_.WasRemoved(Parity(1), Tier::kMemory));
  preparer.Stop();
}

TEST_F(ParityServiceTest, TasksRunOnTheThreadOfAJobWithAGroupOnly) {
  EXPECT_FALSE(parity_->Post("job", [] {}));
  JobState unprotected = job_;
  unprotected.group.reset();
  parity_->SetJobState(unprotected);
  EXPECT_FALSE(parity_->Post("job", [] {}));
  parity_->SetJobState(job_);
  std::atomic<bool> ran{false};
  const std::thread::id here = std::this_thread::get_id();
  EXPECT_TRUE(parity_->Post("job", [&] { ran = std::this_thread::get_id() != here; }));
  EXPECT_TRUE(Eventually([&] { return ran.load(); }));
  parity_->Stop("job");
  EXPECT_FALSE(parity_->Post("job", [] {}));
}

}  // namespace
}  // namespace holdfast::agent
