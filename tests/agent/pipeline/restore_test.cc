#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "storage/format/checksum.h"
#include "tests/agent/pipeline/harness.h"

namespace holdfast::agent {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kTensorBytes = 3'300'000;

#define ASSERT_OK(expr)                                  \
  do {                                                   \
    const auto& ok_status = (expr);                      \
    ASSERT_TRUE(ok_status.ok()) << ok_status.ToString(); \
  } while (false)

PrepareShard Prepare(const ShardIdentity& identity, Tier tier, std::string source = "node-0") {
  PrepareShard prepare;
  prepare.identity = identity;
  prepare.tier = tier;
  prepare.source_node = std::move(source);
  return prepare;
}

class RestoreTest : public ::testing::Test {
 protected:
  void Start(const TestNodeOptions& options = {}) {
    node_ = std::make_unique<TestNode>(options);
    ASSERT_OK(node_->Start());
  }
  // Runs a trainer that saves steps 1..last, all durable, and leaves.
  void TrainAndLeave(uint64_t last) {
    auto trainer = TestTrainer::Connect(node_->socket(), {});
    ASSERT_TRUE(trainer) << trainer.error().ToString();
    for (uint64_t step = 1; step <= last; ++step) {
      auto saved = trainer->Save(step, kTensorBytes);
      ASSERT_TRUE(saved) << saved.error().ToString();
      ASSERT_TRUE(trainer->AwaitNotice(NoticeKind::kCommitted, step, Tier::kDisk));
    }
  }
  Result<TestTrainer> NextRun() {
    return TestTrainer::Connect(node_->socket(), {.run_id = "run-2"});
  }
  Status AwaitPrepared(uint64_t request) {
    if (!Eventually([&] { return node_->coordinator.prepared(request).has_value(); })) {
      return DeadlineExceededError("no Prepared was reported in time");
    }
    return *node_->coordinator.prepared(request);
  }
  static ShardIdentity Shard(uint64_t step, uint64_t incarnation = 1) {
    return {"job", {Incarnation{incarnation}, Step{step}}, Rank{0}, 1};
  }
  void ExpectBytes(TestTrainer& trainer, const ReplyMessage& reply, uint64_t step) {
    const auto image = MakeImage(Shard(step), kTensorBytes);
    ASSERT_EQ(reply.image_bytes, image.size());
    EXPECT_TRUE(std::equal(image.begin(), image.end(), trainer.slot(reply.slot).begin()));
  }
  // Restarts the node without its memory.
  void LoseMemory() {
    node_->Stop();
    node_->KillKeeper();
    node_->coordinator.Forget(Tier::kMemory);
    ASSERT_OK(node_->Start());
  }

  std::unique_ptr<TestNode> node_;
};

TEST_F(RestoreTest, FromMemory) {
  Start();
  TrainAndLeave(2);
  auto trainer = NextRun();
  ASSERT_TRUE(trainer);
  EXPECT_EQ(AwaitPrepared(node_->coordinator.Prepare(Prepare(Shard(2), Tier::kMemory))),
            Status::Ok());
  node_->coordinator.SetDecision(RestoreDecision{Shard(2).version, Tier::kMemory});
  auto found = trainer->FindRestore();
  ASSERT_TRUE(found);
  ASSERT_EQ(found->code, 0U) << GetText(found->text);
  EXPECT_EQ(found->tier, static_cast<uint32_t>(Tier::kMemory));
  EXPECT_EQ(found->step, 2U);
  ExpectBytes(*trainer, *found, 2);
  EXPECT_TRUE(trainer->EndSave(found->slot, 2, MessageType::kEndRestore).ok());
}

TEST_F(RestoreTest, FromDiskAfterTheMemoryIsLost) {
  Start();
  TrainAndLeave(2);
  LoseMemory();
  EXPECT_TRUE(node_->coordinator.Holds(Shard(2).key(), Tier::kDisk));
  // The directive comes before the rank connects; it is executed afterwards.
  const uint64_t request = node_->coordinator.Prepare(Prepare(Shard(2), Tier::kDisk));
  auto trainer = NextRun();
  ASSERT_TRUE(trainer);
  EXPECT_EQ(AwaitPrepared(request), Status::Ok());
  EXPECT_TRUE(node_->coordinator.Holds(Shard(2).key(), Tier::kMemory));
  node_->coordinator.SetDecision(RestoreDecision{Shard(2).version, Tier::kDisk});
  auto found = trainer->FindRestore();
  ASSERT_TRUE(found);
  ASSERT_EQ(found->code, 0U) << GetText(found->text);
  EXPECT_EQ(found->tier, static_cast<uint32_t>(Tier::kDisk));
  ExpectBytes(*trainer, *found, 2);
}

// A simulation found this: each repetition filled another slot, and no slot was left for saves.
TEST_F(RestoreTest, RepeatedDirectivesBeforeTheRankConnectsFillOneSlot) {
  Start();
  TrainAndLeave(2);
  LoseMemory();
  std::vector<uint64_t> requests;
  for (int i = 0; i < 3; ++i) {
    requests.push_back(node_->coordinator.Prepare(Prepare(Shard(2), Tier::kDisk)));
  }
  auto trainer = NextRun();
  ASSERT_TRUE(trainer);
  for (uint64_t request : requests) EXPECT_EQ(AwaitPrepared(request), Status::Ok());
  size_t filled = 0;
  for (const SlotStatus& slot : node_->Slots()) {
    if (slot.info.state != SlotState::kFree) ++filled;
  }
  EXPECT_EQ(filled, 1U);
}

// A simulation found this: a restarted coordinator chose another source while the read from the
// first one still ran, and gave up a good replica because of that read's failure.
TEST_F(RestoreTest, TheFailureOfOneSourceDoesNotAnswerForAnother) {
  Start();
  TrainAndLeave(2);
  LoseMemory();
  const uint64_t elsewhere = node_->coordinator.Prepare(Prepare(Shard(2), Tier::kMemory, "node-1"));
  const uint64_t here = node_->coordinator.Prepare(Prepare(Shard(2), Tier::kDisk));
  auto trainer = NextRun();
  ASSERT_TRUE(trainer);
  EXPECT_FALSE(AwaitPrepared(elsewhere).ok());
  EXPECT_EQ(AwaitPrepared(here), Status::Ok());
  EXPECT_TRUE(node_->coordinator.Holds(Shard(2).key(), Tier::kMemory));
}

TEST_F(RestoreTest, ADecidedVersionIsReadFromDiskWithoutADirective) {
  Start();
  TrainAndLeave(1);
  LoseMemory();
  auto trainer = NextRun();
  ASSERT_TRUE(trainer);
  node_->coordinator.SetDecision(RestoreDecision{Shard(1).version, Tier::kDisk});
  auto found = trainer->FindRestore();
  ASSERT_TRUE(found);
  ASSERT_EQ(found->code, 0U) << GetText(found->text);
  ExpectBytes(*trainer, *found, 1);
}

TEST_F(RestoreTest, FromAnotherNode) {
  Start();
  auto trainer = NextRun();
  ASSERT_TRUE(trainer);
  node_->peers.Serve(Shard(9), MakeImage(Shard(9), kTensorBytes));
  const uint64_t digest = node_->peers.seal.digest();
  PrepareShard prepare = Prepare(Shard(9), Tier::kMemory, "node-1");
  prepare.source_peer_address = "n1:7070";
  prepare.digest = digest + 1;
  EXPECT_EQ(AwaitPrepared(node_->coordinator.Prepare(prepare)).code(), ErrorCode::kDataLoss);
  prepare.digest = digest;
  EXPECT_EQ(AwaitPrepared(node_->coordinator.Prepare(prepare)), Status::Ok());
  for (const PeerRequest& request : node_->peers.Requests()) {
    EXPECT_TRUE(request.sealed) << ToString(request) << " waits for a save";
    EXPECT_EQ(request.incarnation, trainer->incarnation()) << "fences older starts";
  }
  node_->coordinator.SetDecision(RestoreDecision{Shard(9).version, Tier::kMemory});
  auto found = trainer->FindRestore();
  ASSERT_TRUE(found);
  ExpectBytes(*trainer, *found, 9);
  // A version that was damaged in transfer is not kept.
  node_->peers.Serve(Shard(10), MakeImage(Shard(10), kTensorBytes));
  node_->peers.image[200'000] ^= std::byte{1};
  prepare = Prepare(Shard(10), Tier::kMemory, "node-1");
  prepare.source_peer_address = "n1:7070";
  Status status = AwaitPrepared(node_->coordinator.Prepare(prepare));
  EXPECT_EQ(status.code(), ErrorCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("node-1"));
  EXPECT_THAT(status.message(), HasSubstr("chunk 0"));
  EXPECT_FALSE(node_->coordinator.Holds(Shard(10).key(), Tier::kMemory));
}

TEST_F(RestoreTest, ANodeWithoutAPeerAddressIsNamed) {
  Start();
  auto trainer = NextRun();
  ASSERT_TRUE(trainer);
  const Status status =
      AwaitPrepared(node_->coordinator.Prepare(Prepare(Shard(9), Tier::kMemory, "node-1")));
  EXPECT_EQ(status.code(), ErrorCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("node-1"));
  EXPECT_THAT(status.message(), HasSubstr("no peer address"));
}

TEST_F(RestoreTest, AnImageOfAnotherShardIsNotRestored) {
  Start();
  auto trainer = NextRun();
  ASSERT_TRUE(trainer);
  // The seal matches the bytes and names the requested shard; the image header names another one.
  node_->peers.Serve(Shard(9), MakeImage(Shard(10), kTensorBytes));
  PrepareShard prepare = Prepare(Shard(9), Tier::kMemory, "node-1");
  prepare.source_peer_address = "n1:7070";
  const Status status = AwaitPrepared(node_->coordinator.Prepare(prepare));
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr("1-10"));
  EXPECT_FALSE(node_->coordinator.Holds(Shard(9).key(), Tier::kMemory));
}

TEST_F(RestoreTest, ADamagedSlotIsDataLossAndRemoved) {
  Start();
  TrainAndLeave(2);
  auto trainer = NextRun();
  ASSERT_TRUE(trainer);
  // A stray write of the trainer, which has the sealed slots mapped.
  for (const auto& slot : node_->Slots()) {
    if (slot.info.version == Shard(2).version) {
      trainer->slot(slot.info.slot)[2 * kChunkBytes + 5] ^= std::byte{0x10};
    }
  }
  Status status = AwaitPrepared(node_->coordinator.Prepare(Prepare(Shard(2), Tier::kMemory)));
  EXPECT_EQ(status.code(), ErrorCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("chunk 2"));
  EXPECT_TRUE(node_->coordinator.WasRemoved(Shard(2).key(), Tier::kMemory));
  // The disk still has the version.
  EXPECT_EQ(AwaitPrepared(node_->coordinator.Prepare(Prepare(Shard(2), Tier::kDisk))),
            Status::Ok());
}

TEST_F(RestoreTest, AFlippedBitOnDiskIsDataLossQuarantinedAndNamed) {
  Start();
  TrainAndLeave(2);
  LoseMemory();
  auto trainer = NextRun();
  ASSERT_TRUE(trainer);
  for (const std::string& path : node_->DataFiles()) {
    if (!path.ends_with(".safetensors") || path.find("1-2") == std::string::npos) continue;
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(1'200'000);
    const char flipped = static_cast<char>(file.get() ^ 0x04);
    file.seekp(1'200'000);
    file.put(flipped);
  }
  Status status = AwaitPrepared(node_->coordinator.Prepare(Prepare(Shard(2), Tier::kDisk)));
  EXPECT_EQ(status.code(), ErrorCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("chunk 1"));
  EXPECT_THAT(status.message(), HasSubstr("safetensors"));
  EXPECT_TRUE(node_->coordinator.WasRemoved(Shard(2).key(), Tier::kDisk));
  ASSERT_EQ(node_->volume->List().size(), 1U);
  EXPECT_EQ(node_->volume->List()[0].identity, Shard(1));
  EXPECT_TRUE(Eventually([&] {
    const std::vector<std::string> warnings = node_->coordinator.warnings();
    return warnings.size() == 1 && warnings[0].starts_with("quarantined files: 2");
  })) << "the data and its seal";
  EXPECT_FALSE(node_->coordinator.Holds(Shard(2).key(), Tier::kMemory));
  EXPECT_EQ(AwaitPrepared(node_->coordinator.Prepare(Prepare(Shard(1), Tier::kDisk))),
            Status::Ok());
}

TEST_F(RestoreTest, ARankThatNeverConnectsIsUnavailable) {
  Start({.prepare_wait_ms = 200});
  Status status = AwaitPrepared(node_->coordinator.Prepare(Prepare(Shard(1), Tier::kDisk)));
  EXPECT_EQ(status.code(), ErrorCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("rank 0"));
}

TEST_F(RestoreTest, AnAbsentVersionIsDataLoss) {
  Start();
  auto trainer = NextRun();
  ASSERT_TRUE(trainer);
  for (Tier tier : {Tier::kMemory, Tier::kDisk}) {
    Status status = AwaitPrepared(node_->coordinator.Prepare(Prepare(Shard(77), tier)));
    EXPECT_EQ(status.code(), ErrorCode::kDataLoss);
  }
}

TEST_F(RestoreTest, ASlotIsNotReusedWhileItIsRead) {
  Start();
  TrainAndLeave(1);
  auto trainer = NextRun();
  ASSERT_TRUE(trainer);
  node_->coordinator.SetDecision(RestoreDecision{Shard(1).version, Tier::kMemory});
  auto found = trainer->FindRestore();
  ASSERT_TRUE(found);
  ASSERT_EQ(found->code, 0U);
  for (uint64_t step = 2; step <= 8; ++step) {
    ASSERT_TRUE(trainer->Save(step, kTensorBytes)) << step;
    ASSERT_TRUE(trainer->AwaitNotice(NoticeKind::kCommitted, step, Tier::kMemory));
  }
  ExpectBytes(*trainer, *found, 1);
  EXPECT_FALSE(node_->coordinator.WasRemoved(Shard(1).key(), Tier::kMemory));
}

TEST_F(RestoreTest, NothingToRestoreIsNotFound) {
  Start();
  auto trainer = NextRun();
  ASSERT_TRUE(trainer);
  auto found = trainer->FindRestore();
  ASSERT_TRUE(found);
  EXPECT_EQ(ErrorFromNumber(found->code), ErrorCode::kNotFound);
}

TEST_F(RestoreTest, ARestoreWaitsForAnUnreachableCoordinator) {
  Start();
  TrainAndLeave(1);
  auto trainer = NextRun();
  ASSERT_TRUE(trainer);
  node_->coordinator.SetReachable(false);
  FindRestoreMessage message;
  message.header.ticket = 500;
  message.timeout_ms = 20'000;
  ASSERT_OK(trainer->SendRaw(message));
  EXPECT_FALSE(trainer->AwaitReply(500, 300));
  node_->coordinator.SetDecision(RestoreDecision{Shard(1).version, Tier::kMemory});
  node_->coordinator.SetReachable(true);
  auto found = trainer->AwaitReply(500);
  ASSERT_TRUE(found) << found.error().ToString();
  EXPECT_EQ(found->code, 0U) << GetText(found->text);
}

// ---- a restarted agent ----

TEST_F(RestoreTest, ARestartedAgentAdoptsSlotsAndContinues) {
  Start();
  auto trainer = TestTrainer::Connect(node_->socket(), {});
  ASSERT_TRUE(trainer);
  ASSERT_TRUE(trainer->Save(1, kTensorBytes));
  ASSERT_TRUE(trainer->AwaitNotice(NoticeKind::kCommitted, 1, Tier::kDisk));
  const auto image = MakeImage(trainer->Identity(2), kTensorBytes);
  auto open = trainer->BeginSave(2, image.size());
  ASSERT_TRUE(open);
  trainer->Copy(open->slot, image, 1'500'000);
  const uint64_t segment = trainer->welcome().segment_id;

  node_->Stop();
  node_->coordinator.Forget(Tier::kMemory);
  EXPECT_TRUE(trainer->AwaitClosed());
  ASSERT_OK(node_->Start());
  EXPECT_TRUE(node_->coordinator.Holds(Shard(1).key(), Tier::kMemory));
  int used = 0;
  for (const auto& slot : node_->Slots()) {
    used += slot.info.state != SlotState::kFree ? 1 : 0;
  }
  EXPECT_EQ(used, 1);  // the unsealed one is free

  auto again = TestTrainer::Connect(node_->socket(), {});
  ASSERT_TRUE(again) << again.error().ToString();
  EXPECT_EQ(again->welcome().segment_id, segment);
  EXPECT_EQ(again->incarnation(), Incarnation{1});
  ASSERT_TRUE(again->Save(2, kTensorBytes));
  EXPECT_TRUE(again->AwaitNotice(NoticeKind::kCommitted, 2, Tier::kDisk));
}

TEST_F(RestoreTest, AnAdoptedSlotThatIsDamagedIsNotOffered) {
  Start();
  auto trainer = TestTrainer::Connect(node_->socket(), {});
  ASSERT_TRUE(trainer);
  auto first = trainer->Save(1, kTensorBytes);
  ASSERT_TRUE(first);
  ASSERT_TRUE(trainer->AwaitNotice(NoticeKind::kCommitted, 1, Tier::kDisk));
  ASSERT_TRUE(trainer->Save(2, kTensorBytes));
  ASSERT_TRUE(trainer->AwaitNotice(NoticeKind::kCommitted, 2, Tier::kDisk));
  node_->Stop();
  node_->coordinator.Forget(Tier::kMemory);
  trainer->slot(*first)[1'000'000] ^= std::byte{1};
  ASSERT_OK(node_->Start());
  EXPECT_FALSE(node_->coordinator.Holds(Shard(1).key(), Tier::kMemory));
  EXPECT_TRUE(node_->coordinator.Holds(Shard(2).key(), Tier::kMemory));
}

TEST_F(RestoreTest, AnAdoptedVersionThatWasDueForDiskIsWritten) {
  Start({.simulated_disk = true});
  auto trainer = TestTrainer::Connect(node_->socket(), {});
  ASSERT_TRUE(trainer);
  node_->disk.Inject(
      {.op = SimOp::kSync, .effect = SimEffect::kDelay, .times = 1, .path = {}, .delay_ms = 700});
  ASSERT_TRUE(trainer->Save(1, kTensorBytes));
  ASSERT_TRUE(trainer->AwaitNotice(NoticeKind::kCommitted, 1, Tier::kMemory));
  node_->Stop();
  node_->disk.Crash(SimSurvival::kNothing);
  ASSERT_OK(node_->Start());
  node_->coordinator.Broadcast("job");
  EXPECT_TRUE(Eventually([&] { return node_->coordinator.Holds(Shard(1).key(), Tier::kDisk); }));
  EXPECT_TRUE(node_->volume->VerifyShard(Shard(1).key(), true).ok());
}

}  // namespace
}  // namespace holdfast::agent
