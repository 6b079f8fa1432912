#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <functional>
#include <thread>

#include "base/random.h"
#include "tests/agent/pipeline/harness.h"

// Errors of a trainer, intended or not: they harm only its own save or session.

namespace holdfast::agent {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kTensorBytes = 2'500'000;

class HostileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Status status = node_.Start();
    ASSERT_TRUE(status.ok()) << status.ToString();
    auto bystander = TestTrainer::Connect(node_.socket(), {.job = "bystander"});
    ASSERT_TRUE(bystander) << bystander.error().ToString();
    bystander_ = std::make_unique<TestTrainer>(std::move(*bystander));
    auto trainer = TestTrainer::Connect(node_.socket(), {});
    ASSERT_TRUE(trainer) << trainer.error().ToString();
    trainer_ = std::make_unique<TestTrainer>(std::move(*trainer));
  }
  // After every test, another job's trainer is still served.
  void TearDown() override {
    auto saved = bystander_->Save(++bystander_step_, kTensorBytes);
    ASSERT_TRUE(saved) << saved.error().ToString();
    EXPECT_TRUE(bystander_->AwaitNotice(NoticeKind::kCommitted, bystander_step_, Tier::kDisk));
  }
  Status FailureOf(uint64_t step) {
    auto notice = trainer_->AwaitNotice(NoticeKind::kFailed, step, Tier::kMemory);
    if (!notice) return notice.error();
    return Status(ErrorFromNumber(notice->code), GetText(notice->text));
  }
  void ExpectSaveSucceeds(uint64_t step) {
    auto saved = trainer_->Save(step, kTensorBytes);
    ASSERT_TRUE(saved) << saved.error().ToString();
    EXPECT_TRUE(trainer_->AwaitNotice(NoticeKind::kCommitted, step, Tier::kDisk));
  }
  Status RefusalOf(const TestTrainer::Options& options) {
    auto trainer = TestTrainer::Connect(node_.socket(), options);
    return trainer ? Status::Ok() : trainer.error();
  }

  TestNode node_;
  std::unique_ptr<TestTrainer> bystander_;
  std::unique_ptr<TestTrainer> trainer_;
  uint64_t bystander_step_ = 0;
};

TEST_F(HostileTest, SilentConnectionsDoNotBlockATrainer) {
  std::vector<TestTrainer> silent;
  for (int tries = 0; silent.size() < 600 && tries < 5000; ++tries) {
    auto one = TestTrainer::ConnectSilently(node_.socket());
    if (one) {
      silent.push_back(std::move(*one));
    } else {
      ::usleep(1000);  // the queue of the socket is full for a moment
    }
  }
  const auto before = std::chrono::steady_clock::now();
  Status refused;
  const bool served = Eventually([&] {
    refused = RefusalOf({.job = "late"});
    return refused.ok();
  });
  ASSERT_TRUE(served) << refused.ToString();
  // Much shorter than the Hello timeout of the silent connections.
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(4));
}

TEST_F(HostileTest, RanksThatStartTogetherAreNotDroppedAsSilent) {
  std::vector<std::thread> ranks;
  std::atomic<int> served{0};
  for (uint32_t rank = 0; rank < 100; ++rank) {
    ranks.emplace_back([&, rank] {
      const TestTrainer::Options options{
          .job = "crowd", .rank = rank, .world = 100, .slots = 2, .slot_bytes = 4096};
      auto trainer = TestTrainer::Connect(node_.socket(), options);
      // The arena has no room for all of them; no connection is dropped.
      const bool answered =
          trainer.has_value() || trainer.error().code() == ErrorCode::kResourceExhausted;
      if (answered) ++served;
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(served.load(), 100);
}

/// Runs `body` in a child process in a new PID namespace. Returns false when that is not permitted.
bool InOwnPidNamespace(const std::function<void()>& body, pid_t* child) {
  int permitted[2];
  if (::pipe(permitted) != 0) return false;
  *child = ::fork();
  if (*child == 0) {
    const char may = ::unshare(CLONE_NEWPID) == 0 ? 1 : 0;
    static_cast<void>(!::write(permitted[1], &may, 1));
    if (may == 0) ::_exit(0);
    const pid_t inside = ::fork();
    if (inside == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      body();
      ::_exit(0);
    }
    ::waitpid(inside, nullptr, 0);
    ::_exit(0);
  }
  char may = 0;
  const bool read = ::read(permitted[0], &may, 1) == 1;
  ::close(permitted[0]);
  ::close(permitted[1]);
  return read && may == 1;
}

TEST(PidNamespaceTest, AnInvisibleTrainerIsRefusedWithTheRemedy) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  pid_t child = 0;
  const bool permitted = InOwnPidNamespace(
      [&] {
        TestNode node;
        std::string socket = node.Start().ok() ? node.socket() : "";
        socket.resize(256);
        static_cast<void>(!::write(ready[1], socket.data(), socket.size()));
        for (;;) ::pause();
      },
      &child);
  if (!permitted) {
    ::waitpid(child, nullptr, 0);
    GTEST_SKIP() << "this user may not create PID namespaces";
  }
  std::string socket(256, 0);
  ASSERT_EQ(::read(ready[0], socket.data(), socket.size()), 256);
  auto trainer = TestTrainer::Connect(socket.c_str(), {});
  ASSERT_FALSE(trainer.has_value());
  EXPECT_EQ(trainer.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(trainer.error().message(), HasSubstr("PID namespace"));
  EXPECT_THAT(trainer.error().message(), HasSubstr("hostPID"));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  RemoveTree(std::filesystem::path(socket.c_str()).parent_path());
}

TEST_F(HostileTest, AGoodbyeCountsWhenAnEarlierReplyCannotBeSent) {
  const MessageHeader goodbye{.type = MessageType::kGoodbye};
  for (int run = 0; run < 20; ++run) {
    int pipe[2];
    ASSERT_EQ(::pipe(pipe), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      auto trainer =
          TestTrainer::Connect(node_.socket(), {.job = "left", .run_id = std::to_string(run)});
      bool well = trainer.has_value();
      for (uint64_t step = 1; well && step <= 8; ++step) {
        BeginSaveMessage begin;
        begin.step = step;
        begin.image_bytes = 1;
        well = trainer->SendRaw(begin).ok();
      }
      well = well && trainer->SendRaw(goodbye).ok();
      if (well) trainer->HangUp();
      const char outcome = well ? 1 : 0;
      static_cast<void>(!::write(pipe[1], &outcome, 1));
      for (;;) ::pause();  // the process stays alive
    }
    char outcome = 0;
    EXPECT_EQ(::read(pipe[0], &outcome, 1), 1);
    EXPECT_EQ(outcome, 1);
    auto next = TestTrainer::Connect(node_.socket(),
                                     {.job = "left", .run_id = "after-" + std::to_string(run)});
    EXPECT_TRUE(next) << "run " << run << ": " << next.error().ToString();
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    ::close(pipe[0]);
    ::close(pipe[1]);
    if (HasFailure()) return;
    EXPECT_TRUE(next->SendRaw(goodbye).ok() && next->AwaitClosed());
  }
}

TEST_F(HostileTest, HelloWithBadNumbersIsRefusedClearly) {
  EXPECT_EQ(RefusalOf({.job = "../etc"}).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(RefusalOf({.job = ""}).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(RefusalOf({.job = "new", .run_id = ""}).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(RefusalOf({.job = "new", .run_id = "a b"}).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(RefusalOf({.job = "new", .rank = 4, .world = 4}).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(RefusalOf({.job = "new", .world = 0}).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(RefusalOf({.job = "new", .slots = 1}).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(RefusalOf({.job = "new", .slots = 1'000'000}).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(RefusalOf({.job = "new", .slot_bytes = 0}).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(RefusalOf({.job = "new", .slot_bytes = ~0ULL}).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(RefusalOf({.job = "new", .protocol = 9}).code(), ErrorCode::kUnsupported);
  const Status large = RefusalOf({.job = "new", .slot_bytes = 1ULL << 30});
  EXPECT_EQ(large.code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(large.message(), HasSubstr("needs 3.0 GiB (3 slots of 1 GiB and 1 MiB of control)"));
  EXPECT_THAT(large.message(), HasSubstr("256 MiB"));
  EXPECT_THAT(large.message(), HasSubstr("[arena] bytes"));
}

TEST_F(HostileTest, GarbagePacketsEndTheSession) {
  Random random(7);
  for (size_t bytes : {1UL, 15UL, 16UL, 40UL, 300UL, 2048UL, 5000UL}) {
    auto raw = TestTrainer::ConnectSilently(node_.socket());
    ASSERT_TRUE(raw);
    std::vector<std::byte> packet(bytes);
    for (std::byte& one : packet) one = static_cast<std::byte>(random.Next());
    Status sent = raw->SendRaw(packet);
    EXPECT_TRUE(sent.ok()) << sent.ToString();
    EXPECT_TRUE(raw->AwaitClosed()) << bytes;
  }
  // Valid header, wrong size.
  MessageHeader header{.type = MessageType::kBeginSave};
  ASSERT_TRUE(trainer_->SendRaw(header).ok());
  EXPECT_TRUE(trainer_->AwaitClosed());
}

TEST_F(HostileTest, OutOfOrderPacketsEndTheSession) {
  auto raw = TestTrainer::ConnectSilently(node_.socket());
  ASSERT_TRUE(raw);
  ASSERT_TRUE(raw->SendRaw(BeginSaveMessage{}).ok());
  EXPECT_TRUE(raw->AwaitClosed());
  ASSERT_TRUE(trainer_->SendRaw(HelloMessage{}).ok());
  EXPECT_TRUE(trainer_->AwaitClosed());
}

TEST_F(HostileTest, ImageSizesAreChecked) {
  auto too_large = trainer_->BeginSave(1, trainer_->welcome().slot_bytes + 1);
  ASSERT_TRUE(too_large);
  EXPECT_EQ(ErrorFromNumber(too_large->code), ErrorCode::kInvalidArgument);
  auto huge = trainer_->BeginSave(1, ~0ULL);
  ASSERT_TRUE(huge);
  EXPECT_EQ(ErrorFromNumber(huge->code), ErrorCode::kInvalidArgument);
  auto none = trainer_->BeginSave(1, 0);
  ASSERT_TRUE(none);
  EXPECT_EQ(ErrorFromNumber(none->code), ErrorCode::kInvalidArgument);
  ExpectSaveSucceeds(1);
}

TEST_F(HostileTest, EndSaveOfAnotherSlotFails) {
  auto begun = trainer_->BeginSave(1, 5000);
  ASSERT_TRUE(begun);
  ASSERT_TRUE(trainer_->EndSave(begun->slot + 1, 1).ok());
  EXPECT_EQ(FailureOf(1).code(), ErrorCode::kFailedPrecondition);
  ASSERT_TRUE(trainer_->EndSave(begun->slot, 2).ok());
  EXPECT_EQ(FailureOf(2).code(), ErrorCode::kFailedPrecondition);
  ASSERT_TRUE(trainer_->EndSave(4'000'000'000, 3).ok());
  EXPECT_EQ(FailureOf(3).code(), ErrorCode::kInvalidArgument);
  ASSERT_TRUE(trainer_->EndSave(4'000'000'000, 4, MessageType::kEndRestore).ok());
  EXPECT_EQ(FailureOf(4).code(), ErrorCode::kFailedPrecondition);
  ASSERT_TRUE(trainer_->EndSave(begun->slot, 1, MessageType::kAbandonSave).ok());
  ExpectSaveSucceeds(1);
}

TEST_F(HostileTest, ProgressBeyondTheImageFailsThatSave) {
  auto begun = trainer_->BeginSave(1, kTensorBytes);
  ASSERT_TRUE(begun);
  PublishProgress(trainer_->progress(begun->slot), 1ULL << 60);
  const Status status = FailureOf(1);
  EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("2500000"));
  EXPECT_TRUE(node_.coordinator.failed(trainer_->Key(1), Tier::kMemory).has_value());
  ExpectSaveSucceeds(2);
}

TEST_F(HostileTest, ProgressThatGoesBackFailsThatSave) {
  auto begun = trainer_->BeginSave(1, kTensorBytes);
  ASSERT_TRUE(begun);
  PublishProgress(trainer_->progress(begun->slot), 2'000'000);
  EXPECT_TRUE(Eventually([&] {
    for (const auto& rank : StatusOf(node_.node->ranks())) {
      if (rank.owner.job == "job" && rank.slots[begun->slot].checksummed > 0) return true;
    }
    return false;
  }));
  PublishProgress(trainer_->progress(begun->slot), 5);
  EXPECT_THAT(FailureOf(1).message(), HasSubstr("went back"));
  ExpectSaveSucceeds(2);
}

TEST_F(HostileTest, AnEndBeforeTheCopyIsCompleteFailsThatSave) {
  auto begun = trainer_->BeginSave(1, kTensorBytes);
  ASSERT_TRUE(begun);
  PublishProgress(trainer_->progress(begun->slot), kTensorBytes - 1);
  ASSERT_TRUE(trainer_->EndSave(begun->slot, 1).ok());
  EXPECT_THAT(FailureOf(1).message(), HasSubstr("2499999 of 2500000"));
  ExpectSaveSucceeds(2);
}

TEST_F(HostileTest, AnImageThatIsNotThisShardIsNotSealed) {
  // First no header at all, then the header of another job.
  auto begun = trainer_->BeginSave(1, kTensorBytes);
  ASSERT_TRUE(begun);
  std::memset(trainer_->slot(begun->slot).data(), 0xff, 4096);
  PublishProgress(trainer_->progress(begun->slot), kTensorBytes);
  ASSERT_TRUE(trainer_->EndSave(begun->slot, 1).ok());
  EXPECT_FALSE(FailureOf(1).ok());

  ShardIdentity other = trainer_->Identity(2);
  other.job = "bystander";
  const auto image = MakeImage(other, kTensorBytes);
  begun = trainer_->BeginSave(2, image.size());
  ASSERT_TRUE(begun);
  trainer_->Copy(begun->slot, image, image.size());
  ASSERT_TRUE(trainer_->EndSave(begun->slot, 2).ok());
  EXPECT_THAT(FailureOf(2).message(), HasSubstr("bystander/1-2/rank-0"));
  EXPECT_FALSE(node_.coordinator.Holds(other.key(), Tier::kMemory));
  for (uint64_t step : {1, 2}) {
    EXPECT_FALSE(node_.coordinator.Holds(trainer_->Key(step), Tier::kMemory));
    EXPECT_FALSE(node_.coordinator.Holds(trainer_->Key(step), Tier::kDisk));
  }
  ExpectSaveSucceeds(3);
}

TEST_F(HostileTest, AHeaderThatChangesDuringTheCopyIsNotSealed) {
  const auto image = MakeImage(trainer_->Identity(1), kTensorBytes);
  auto begun = trainer_->BeginSave(1, image.size());
  ASSERT_TRUE(begun);
  trainer_->Copy(begun->slot, image, 2'000'000);
  // The checksum of the first chunk is computed after the header was parsed.
  EXPECT_TRUE(Eventually([&] {
    for (const auto& rank : StatusOf(node_.node->ranks())) {
      if (rank.owner.job == "job" && rank.slots[begun->slot].checksummed > 0) return true;
    }
    return false;
  }));
  const auto other = MakeImage(trainer_->Identity(7), kTensorBytes);
  const std::span<std::byte> slot = trainer_->slot(begun->slot);
  std::memcpy(slot.data(), other.data(), 4096);
  std::memcpy(slot.data() + 2'000'000, image.data() + 2'000'000, image.size() - 2'000'000);
  PublishProgress(trainer_->progress(begun->slot), image.size());
  ASSERT_TRUE(trainer_->EndSave(begun->slot, 1).ok());
  EXPECT_THAT(FailureOf(1).message(), HasSubstr("the image header changed"));
  EXPECT_FALSE(node_.coordinator.Holds(trainer_->Key(1), Tier::kMemory));
  ExpectSaveSucceeds(2);
}

TEST_F(HostileTest, ATrainerThatNeverReadsIsDisconnected) {
  BeginSaveMessage message;
  message.step = 1;
  message.image_bytes = 0;
  Status status;
  for (int i = 0; i < 20'000 && status.ok(); ++i) status = trainer_->SendRaw(message);
  EXPECT_TRUE(trainer_->AwaitClosed());
}

TEST_F(HostileTest, RandomPacketsWithAValidHeaderHarmNothing) {
  Random random(99);
  for (int round = 0; round < 300; ++round) {
    const MessageType types[] = {MessageType::kBeginSave, MessageType::kEndSave,
                                 MessageType::kAbandonSave, MessageType::kFindRestore,
                                 MessageType::kEndRestore};
    const MessageType type = types[random.Below(5)];
    Status status;
    if (type == MessageType::kBeginSave) {
      BeginSaveMessage message;
      message.step = random.Below(50);
      message.image_bytes = random.Below(2) == 0 ? random.Next() : random.Below(5 << 20);
      message.wait = static_cast<uint32_t>(random.Below(2));
      message.wait_ms = static_cast<uint32_t>(random.Below(50));
      message.skipping = static_cast<uint32_t>(random.Below(2));
      status = trainer_->SendRaw(message);
    } else if (type == MessageType::kFindRestore) {
      FindRestoreMessage message;
      message.wanted_incarnation = random.Below(3);
      message.timeout_ms = random.Next();
      status = trainer_->SendRaw(message);
    } else {
      status = trainer_->EndSave(static_cast<uint32_t>(random.Below(5)), random.Below(50), type);
    }
    ASSERT_TRUE(status.ok()) << status.ToString();
    if (random.OneIn(3)) {
      PublishProgress(trainer_->progress(static_cast<uint32_t>(random.Below(3))), random.Next());
    }
    // Keep the socket's receive queue from filling up.
    static_cast<void>(trainer_->AwaitReply(~0ULL - 1, 0).has_value());
  }
}

TEST_F(HostileTest, ManySilentConnectionsDoNotStopASave) {
  std::vector<TestTrainer> silent;
  for (int i = 0; i < 200; ++i) {
    auto one = TestTrainer::ConnectSilently(node_.socket());
    // A burst may fill the listener's queue for a moment.
    for (int again = 0; !one && again < 500; ++again) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      one = TestTrainer::ConnectSilently(node_.socket());
    }
    ASSERT_TRUE(one) << one.error().ToString();
    silent.push_back(std::move(*one));
  }
  ExpectSaveSucceeds(1);
}

}  // namespace
}  // namespace holdfast::agent
