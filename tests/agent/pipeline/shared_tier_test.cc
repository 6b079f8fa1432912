// A node that copies its shards to tier remote and restores them from there: also when the file
// system of the tier hangs, is full, returns errors, or was damaged.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "agent/pipeline/shared_tiers.h"
#include "storage/remote/remote_directory.h"
#include "tests/agent/pipeline/harness.h"

namespace holdfast::agent {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kTensorBytes = 3'300'000;
constexpr LifeId kLife{0x77};
constexpr Tier kRemote = Tier::kRemote;

#define ASSERT_OK(expr)                                  \
  do {                                                   \
    const auto& ok_status = (expr);                      \
    ASSERT_TRUE(ok_status.ok()) << ok_status.ToString(); \
  } while (false)

/// A root on a simulated disk. While it is closed, calls hang.
class GatedRoot final : public SharedRoot {
 public:
  explicit GatedRoot(SimDisk& disk) : disk_(disk) {}
  Result<std::unique_ptr<Directory>> Open(const std::string& name, bool /*make*/) override {
    MutexLock lock(mutex_);
    ++waiting_;
    changed_.NotifyAll();
    while (!open_) changed_.Wait(mutex_);
    --waiting_;
    return disk_.Open(name);
  }
  void SetOpen(bool open) {
    MutexLock lock(mutex_);
    open_ = open;
    changed_.NotifyAll();
  }
  void AwaitHang() {
    MutexLock lock(mutex_);
    while (waiting_ == 0) changed_.Wait(mutex_);
  }

 private:
  SimDisk& disk_;
  Mutex mutex_;
  CondVar changed_;
  bool open_ HOLDFAST_GUARDED_BY(mutex_) = true;
  int waiting_ HOLDFAST_GUARDED_BY(mutex_) = 0;
};

class SharedTierTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto root = std::make_unique<GatedRoot>(remote_disk_);
    root_ = root.get();
    RemoteOptions options;
    options.cluster = "test";
    remote_ = std::make_unique<RemoteDirectory>(std::move(root), options, Clock::Real());
    remote_->SetLife(kLife);
    TestNodeOptions node;
    node.shared_tiers[kRemote] = remote_.get();
    node_ = std::make_unique<TestNode>(node);
    ASSERT_OK(node_->Start());
  }
  void TearDown() override {
    root_->SetOpen(true);
    node_.reset();
  }
  Result<TestTrainer> Train(uint64_t first, uint64_t last) {
    HOLDFAST_ASSIGN_OR_RETURN(TestTrainer trainer, TestTrainer::Connect(node_->socket(), {}));
    for (uint64_t step = first; step <= last; ++step) {
      HOLDFAST_RETURN_IF_ERROR(SaveToDisk(trainer, step));
    }
    return trainer;
  }
  static Status SaveToDisk(TestTrainer& trainer, uint64_t step) {
    HOLDFAST_RETURN_IF_ERROR(StatusOf(trainer.Save(step, kTensorBytes)));
    return StatusOf(trainer.AwaitNotice(NoticeKind::kCommitted, step, Tier::kDisk));
  }
  template <typename T>
  static Status StatusOf(const Result<T>& result) {
    return result ? Status::Ok() : result.error();
  }
  static ShardIdentity Shard(uint64_t step) {
    return {"job", {Incarnation{1}, Step{step}}, Rank{0}, 1};
  }
  uint64_t OrderCopy(uint64_t step) {
    PrepareShard prepare;
    prepare.identity = Shard(step);
    prepare.tier = Tier::kDisk;
    prepare.source_node = "node-0";
    prepare.into = kRemote;
    return node_->coordinator.Prepare(prepare);
  }
  uint64_t OrderRestore(uint64_t step) {
    PrepareShard prepare;
    prepare.identity = Shard(step);
    prepare.tier = kRemote;
    return node_->coordinator.Prepare(prepare);
  }
  Status Await(uint64_t request) {
    if (!Eventually([&] { return node_->coordinator.prepared(request).has_value(); })) {
      return DeadlineExceededError("no Prepared was reported in time");
    }
    return *node_->coordinator.prepared(request);
  }
  /// Restarts the node without its memory and without its disks.
  void LoseNode() {
    node_.reset();
    TestNodeOptions node;
    node.shared_tiers[kRemote] = remote_.get();
    node_ = std::make_unique<TestNode>(node);
    ASSERT_OK(node_->Start());
  }
  std::string RemoteDataFile() const {
    for (const std::string& file : remote_disk_.Files()) {
      if (file.ends_with(".safetensors")) return file;
    }
    return "";
  }

  SimDisk remote_disk_;
  GatedRoot* root_ = nullptr;
  std::unique_ptr<TierStore> remote_;
  std::unique_ptr<TestNode> node_;
};

TEST_F(SharedTierTest, ACopyIsReportedWhenItSurvivesAPowerCutAndRestoresOnAnotherNode) {
  auto trainer = Train(1, 2);
  ASSERT_TRUE(trainer) << trainer.error().ToString();
  ASSERT_OK(Await(OrderCopy(2)));
  EXPECT_TRUE(node_->coordinator.Holds(Shard(2).key(), kRemote));
  remote_disk_.Crash(SimSurvival::kNothing);
  trainer->HangUp();
  ASSERT_NO_FATAL_FAILURE(LoseNode());

  auto next = TestTrainer::Connect(node_->socket(), {});
  ASSERT_TRUE(next) << next.error().ToString();
  ASSERT_OK(Await(OrderRestore(2)));
  node_->coordinator.SetDecision(RestoreDecision{Shard(2).version, kRemote, 1});
  auto reply = next->FindRestore();
  ASSERT_TRUE(reply) << reply.error().ToString();
  ASSERT_EQ(reply->code, 0U);
  EXPECT_EQ(reply->tier, static_cast<uint32_t>(kRemote));
  const auto image = MakeImage(Shard(2), kTensorBytes);
  ASSERT_EQ(reply->image_bytes, image.size());
  EXPECT_TRUE(std::equal(image.begin(), image.end(), next->slot(reply->slot).begin()));
}

TEST_F(SharedTierTest, ACopyThatIsOrderedAgainIsReportedAgain) {
  ASSERT_TRUE(Train(1, 1));
  ASSERT_OK(Await(OrderCopy(1)));
  node_->coordinator.Forget(kRemote);
  const uint64_t before = remote_disk_.count(SimOp::kCreate);
  ASSERT_OK(Await(OrderCopy(1)));
  EXPECT_TRUE(node_->coordinator.Holds(Shard(1).key(), kRemote));
  EXPECT_EQ(remote_disk_.count(SimOp::kCreate), before) << "it is not written again";
}

TEST_F(SharedTierTest, AFileSystemThatHangsDelaysNoSaveAndBoundsTheStop) {
  root_->SetOpen(false);
  auto trainer = Train(1, 1);
  ASSERT_TRUE(trainer) << trainer.error().ToString();
  const uint64_t copy = OrderCopy(1);
  root_->AwaitHang();
  node_->node->OnRemoveVersion({"job", Shard(1).version, kRemote});
  for (uint64_t step = 2; step <= 12; ++step) ASSERT_OK(SaveToDisk(*trainer, step));
  EXPECT_FALSE(node_->coordinator.prepared(copy).has_value());
  // A repair on disk runs although the copy hangs.
  PrepareShard repair;
  repair.identity = Shard(12);
  repair.tier = Tier::kMemory;
  repair.source_node = "node-0";
  repair.into = Tier::kDisk;
  ASSERT_OK(Await(node_->coordinator.Prepare(repair)));
  EXPECT_FALSE(node_->node->StopSharedTiers(200)) << "the agent then ends without waiting";
  root_->SetOpen(true);
  EXPECT_TRUE(node_->node->StopSharedTiers(20'000));
}

TEST_F(SharedTierTest, AFullTierLeavesTheShardOnDiskAndALaterOrderSucceeds) {
  ASSERT_TRUE(Train(1, 1));
  remote_disk_.SetCapacity(1 << 20);
  const Status full = Await(OrderCopy(1));
  EXPECT_EQ(full.code(), ErrorCode::kOutOfSpace) << full.ToString();
  EXPECT_THAT(full.message(), HasSubstr("remote"));
  EXPECT_FALSE(node_->coordinator.Holds(Shard(1).key(), kRemote));
  EXPECT_FALSE(node_->coordinator.WasRemoved(Shard(1).key(), Tier::kDisk));
  remote_disk_.SetCapacity(UINT64_MAX);
  ASSERT_OK(Await(OrderCopy(1)));
}

TEST_F(SharedTierTest, AnErrorOfTheTierIsNoDamageOfTheReplicaOnDisk) {
  ASSERT_TRUE(Train(1, 1));
  for (SimOp op : {SimOp::kWrite, SimOp::kSync, SimOp::kRename, SimOp::kMakeDirectory}) {
    SCOPED_TRACE(static_cast<int>(op));
    remote_disk_.Inject({.op = op, .effect = SimEffect::kIoError, .path = {}});
    const Status failed = Await(OrderCopy(1));
    remote_disk_.ClearFaults();
    EXPECT_EQ(failed.code(), ErrorCode::kUnavailable) << failed.ToString();
    EXPECT_FALSE(node_->coordinator.Holds(Shard(1).key(), kRemote));
  }
  EXPECT_FALSE(node_->coordinator.WasRemoved(Shard(1).key(), Tier::kDisk));
  EXPECT_TRUE(node_->coordinator.Holds(Shard(1).key(), Tier::kDisk));
  ASSERT_OK(Await(OrderCopy(1)));
}

TEST_F(SharedTierTest, AnErrorOfTheTierDoesNotRemoveItsReplica) {
  auto trainer = Train(1, 1);
  ASSERT_TRUE(trainer);
  ASSERT_OK(Await(OrderCopy(1)));
  trainer->HangUp();
  ASSERT_NO_FATAL_FAILURE(LoseNode());
  ASSERT_TRUE(TestTrainer::Connect(node_->socket(), {}));
  remote_disk_.Inject(
      {.op = SimOp::kRead, .effect = SimEffect::kIoError, .times = 1000, .path = {}});
  const Status failed = Await(OrderRestore(1));
  remote_disk_.ClearFaults();
  EXPECT_EQ(failed.code(), ErrorCode::kUnavailable) << failed.ToString();
  EXPECT_FALSE(node_->coordinator.WasRemoved(Shard(1).key(), kRemote));
}

TEST_F(SharedTierTest, ADamagedShardIsReportedAndKeptInQuarantine) {
  auto trainer = Train(1, 1);
  ASSERT_TRUE(trainer);
  ASSERT_OK(Await(OrderCopy(1)));
  ASSERT_OK(remote_disk_.Damage(RemoteDataFile(), [](std::vector<std::byte>& bytes) {
    bytes[bytes.size() / 2] ^= std::byte{1};
  }));
  trainer->HangUp();
  ASSERT_NO_FATAL_FAILURE(LoseNode());
  auto next = TestTrainer::Connect(node_->socket(), {});
  ASSERT_TRUE(next);
  EXPECT_EQ(Await(OrderRestore(1)).code(), ErrorCode::kDataLoss);
  EXPECT_TRUE(node_->coordinator.WasRemoved(Shard(1).key(), kRemote));
  EXPECT_THAT(RemoteDataFile(), ::testing::IsEmpty());
}

TEST_F(SharedTierTest, AVersionIsRemovedAtTheTierAlone) {
  ASSERT_TRUE(Train(1, 2));
  ASSERT_OK(Await(OrderCopy(1)));
  ASSERT_OK(Await(OrderCopy(2)));
  node_->node->OnRemoveVersion({"job", Shard(1).version, kRemote});
  EXPECT_TRUE(Eventually([&] { return remote_->ListJob("job")->size() == 1; }));
  EXPECT_EQ(remote_->ListJob("job")->at(0).identity, Shard(2));
  EXPECT_FALSE(node_->coordinator.WasRemoved(Shard(1).key(), Tier::kDisk));
}

TEST_F(SharedTierTest, AForgottenJobIsRemovedAtTheTier) {
  ASSERT_TRUE(Train(1, 2));
  ASSERT_OK(Await(OrderCopy(2)));
  node_->coordinator.UpdateJob("job", [](JobState& state) { state.forget = true; });
  EXPECT_TRUE(Eventually([&] { return remote_->ListJob("job")->empty(); }));
}

TEST_F(SharedTierTest, ANodeWithoutTheTierRefusesTheOrder) {
  TestNode other;
  ASSERT_OK(other.Start());
  PrepareShard prepare;
  prepare.identity = Shard(1);
  prepare.tier = Tier::kDisk;
  prepare.into = kRemote;
  const uint64_t request = other.coordinator.Prepare(prepare);
  ASSERT_TRUE(Eventually([&] { return other.coordinator.prepared(request).has_value(); }));
  EXPECT_EQ(other.coordinator.prepared(request)->code(), ErrorCode::kFailedPrecondition);
}

TEST_F(SharedTierTest, AListingReportsAllShardsInIntervals) {
  ASSERT_TRUE(Train(1, 2));
  ASSERT_OK(Await(OrderCopy(1)));
  ASSERT_OK(Await(OrderCopy(2)));
  FakeCoordinator link;
  Warnings warnings(link);
  ManualClock clock;
  PerTier<TierStore*> stores{};
  stores[kRemote] = remote_.get();
  SharedTiers tiers(stores, link, warnings, clock);
  tiers.ListIfDue("job");
  clock.Advance(std::chrono::seconds(21));
  tiers.ListIfDue("job");
  EXPECT_TRUE(Eventually([&] { return link.Holds(Shard(1).key(), kRemote); }));
  EXPECT_TRUE(Eventually([&] { return link.Holds(Shard(2).key(), kRemote); }));
  link.Forget(kRemote);
  clock.Advance(std::chrono::minutes(1));
  tiers.ListIfDue("job");
  clock.Advance(std::chrono::minutes(10));
  tiers.ListIfDue("job");
  EXPECT_TRUE(Eventually([&] { return link.Holds(Shard(2).key(), kRemote); }));
}

}  // namespace
}  // namespace holdfast::agent
