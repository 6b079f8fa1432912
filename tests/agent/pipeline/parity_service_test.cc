#include "agent/pipeline/parity_service.h"

#include <atomic>
#include <thread>

#include "agent/pipeline/damage_tracker.h"
#include "agent/pipeline/peer_source.h"
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
  (*rank)->slots.SetJobState(job_);
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
    (*rank)->slots.SetJobState(job_);
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
  (*rank)->slots.SetJobState(job_);
  EXPECT_TRUE(Eventually([&] {
    return link_.failed({"job", version, ParityRank(0)}, Tier::kPeer).has_value();
  }));
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
