#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <fstream>

#include "agent/pipeline/trainer_record.h"
#include "base/process.h"
#include "storage/format/checksum.h"
#include "tests/agent/pipeline/harness.h"

namespace holdfast::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kTensorBytes = 2'500'000;  // three chunks, the last partial

#define ASSERT_OK(expr)                                  \
  do {                                                   \
    const auto& ok_status = (expr);                      \
    ASSERT_TRUE(ok_status.ok()) << ok_status.ToString(); \
  } while (false)

std::vector<std::byte> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

uint64_t DigestOfImage(const std::vector<std::byte>& image) {
  std::vector<uint32_t> crcs;
  for (uint64_t at = 0; at < image.size(); at += kChunkBytes) {
    crcs.push_back(
        Crc32c(std::span(image).subspan(at, std::min<uint64_t>(kChunkBytes, image.size() - at))));
  }
  return DigestOf(image.size(), crcs);
}

Result<TestTrainer> Connect(TestNode& node, const TestTrainer::Options& options = {}) {
  return TestTrainer::Connect(node.socket(), options);
}

TEST(Save, SealedCommittedDurableBitExact) {
  TestNode node;
  ASSERT_OK(node.Start());
  auto trainer = Connect(node);
  ASSERT_TRUE(trainer) << trainer.error().ToString();
  ASSERT_TRUE(trainer->Save(7, kTensorBytes));
  EXPECT_TRUE(trainer->AwaitNotice(NoticeKind::kSealed, 7, Tier::kMemory));
  EXPECT_TRUE(trainer->AwaitNotice(NoticeKind::kCommitted, 7, Tier::kMemory));
  EXPECT_TRUE(trainer->AwaitNotice(NoticeKind::kCommitted, 7, Tier::kDisk));

  const std::vector<std::byte> image = MakeImage(trainer->Identity(7), kTensorBytes);
  for (Tier tier : {Tier::kMemory, Tier::kDisk}) {
    auto report = node.coordinator.report(trainer->Key(7), tier);
    ASSERT_TRUE(report.has_value());
    EXPECT_EQ(report->digest, DigestOfImage(image));
    EXPECT_EQ(report->image_bytes, image.size());
    EXPECT_EQ(report->identity, trainer->Identity(7));
  }
  int found = 0;
  for (const std::string& path : node.DataFiles()) {
    if (!path.ends_with(".safetensors")) continue;
    ++found;
    EXPECT_EQ(ReadFile(path), image) << path;
  }
  EXPECT_EQ(found, 1);
}

TEST(Save, JoinsAreRepeatedWhileTheCoordinatorNamesNoGroup) {
  TestNode node;
  ASSERT_OK(node.Start());
  auto trainer = Connect(node);
  ASSERT_TRUE(trainer) << trainer.error().ToString();
  // This coordinator plans no group, like one that has lost the slot sizes.
  ASSERT_TRUE(Eventually([&] {
    node.coordinator.Broadcast("job");
    return node.coordinator.joins().size() >= 2;
  }));
  const std::vector<JoinRequest> joins = node.coordinator.joins();
  EXPECT_EQ(joins[1].run_id, joins[0].run_id);
  EXPECT_EQ(joins[1].rank, joins[0].rank);
  EXPECT_EQ(joins[1].slot_bytes, joins[0].slot_bytes);
  EXPECT_GT(joins[1].slot_bytes, 0U);
  EXPECT_TRUE(trainer->Save(1, kTensorBytes)) << "the run continues";
}

TEST(Save, WritingToDiskBeginsBeforeTheCopyEnds) {
  TestNode node({.simulated_disk = true});
  ASSERT_OK(node.Start());
  auto trainer = Connect(node, {.slot_bytes = 32 << 20});
  ASSERT_TRUE(trainer);
  const auto image = MakeImage(trainer->Identity(1), 30'000'000);
  auto reply = trainer->BeginSave(1, image.size());
  ASSERT_TRUE(reply);
  const uint64_t before = node.disk.count(SimOp::kWrite);
  trainer->Copy(reply->slot, image, 28'000'000);
  // The simulated disk finishes writes when its queue of 16 is full.
  EXPECT_TRUE(Eventually([&] { return node.disk.count(SimOp::kWrite) >= before + 8; }));
  EXPECT_FALSE(node.coordinator.Holds(trainer->Key(1), Tier::kMemory));
  trainer->Copy(reply->slot, image, image.size());
  ASSERT_OK(trainer->EndSave(reply->slot, 1));
  EXPECT_TRUE(trainer->AwaitNotice(NoticeKind::kCommitted, 1, Tier::kDisk));
  EXPECT_TRUE(node.volume->VerifyShard(trainer->Key(1), true).ok());
}

TEST(Save, SamplesThatTheImageListsAreReportedOnce) {
  TestNode node;
  ASSERT_OK(node.Start());
  auto trainer = Connect(node);
  ASSERT_TRUE(trainer);
  const std::string list = R"([["'w'",4096,5000,"weights",1000],["'w'",0,1,"nothing",0]])";
  const auto image = MakeImage(trainer->Identity(1), kTensorBytes, list);
  auto reply = trainer->BeginSave(1, image.size());
  ASSERT_TRUE(reply);
  trainer->Copy(reply->slot, image, image.size());
  ASSERT_OK(trainer->EndSave(reply->slot, 1));
  EXPECT_TRUE(trainer->AwaitNotice(NoticeKind::kCommitted, 1, Tier::kDisk));
  const size_t begin = image.size() - list.size() - kTensorBytes + 1000;
  const uint32_t crc = Crc32c(std::span(image).subspan(begin, 5000));
  EXPECT_THAT(node.coordinator.report(trainer->Key(1), Tier::kMemory)->samples,
              ElementsAre(ReplicaSample{"'w'", 4096, 5000, crc}));
  EXPECT_THAT(node.coordinator.report(trainer->Key(1), Tier::kDisk)->samples, IsEmpty());
}

TEST(Save, FortySavesReuseAllSlots) {
  TestNode node;
  ASSERT_OK(node.Start());
  auto trainer = Connect(node);
  ASSERT_TRUE(trainer);
  for (uint64_t step = 1; step <= 40; ++step) {
    auto slot = trainer->Save(step, 100'000);
    ASSERT_TRUE(slot) << slot.error().ToString();
  }
  EXPECT_TRUE(trainer->AwaitNotice(NoticeKind::kCommitted, 40, Tier::kMemory));
  // The floor: the newest committed version is in memory.
  EXPECT_TRUE(node.coordinator.Holds(trainer->Key(40), Tier::kMemory));
  int removed = 0;
  for (uint64_t step = 1; step < 40; ++step) {
    removed += node.coordinator.WasRemoved(trainer->Key(step), Tier::kMemory) ? 1 : 0;
  }
  EXPECT_GE(removed, 37);
}

TEST(Save, WithoutCommitsSlotsFillUpAndSavesAreSkipped) {
  TestNode node;
  ASSERT_OK(node.Start());
  node.coordinator.SetCommits(false);
  auto trainer = Connect(node);
  ASSERT_TRUE(trainer);
  for (uint64_t step = 1; step <= 3; ++step) {
    ASSERT_TRUE(trainer->Save(step, 1000));
    ASSERT_TRUE(trainer->AwaitNotice(NoticeKind::kSealed, step, Tier::kMemory));
  }
  auto skipped = trainer->BeginSave(4, 5000, 0, /*skipping=*/true);
  ASSERT_TRUE(skipped);
  EXPECT_EQ(ErrorFromNumber(skipped->code), ErrorCode::kResourceExhausted);
  EXPECT_TRUE(Eventually(
      [&] { return node.coordinator.failed(trainer->Key(4), Tier::kMemory).has_value(); }));
  for (uint64_t step = 1; step <= 3; ++step) {
    EXPECT_TRUE(node.coordinator.Holds(trainer->Key(step), Tier::kMemory)) << step;
  }
  // A commit frees the older ones, and the trainer gets a notice.
  node.coordinator.SetCommits(true);
  EXPECT_TRUE(trainer->AwaitNotice(NoticeKind::kSlotFree, 0, Tier::kMemory));
  EXPECT_TRUE(trainer->Save(5, 1000, 0));
}

TEST(Save, AWaitingSaveGetsTheSlotThatACommitFrees) {
  TestNode node;
  ASSERT_OK(node.Start());
  node.coordinator.SetCommits(false);
  auto trainer = Connect(node);
  ASSERT_TRUE(trainer);
  for (uint64_t step = 1; step <= 3; ++step) ASSERT_TRUE(trainer->Save(step, 1000));
  ASSERT_TRUE(trainer->AwaitNotice(NoticeKind::kSealed, 3, Tier::kMemory));
  auto late = trainer->BeginSave(4, 5000, 50);
  ASSERT_TRUE(late);
  EXPECT_EQ(ErrorFromNumber(late->code), ErrorCode::kResourceExhausted);

  BeginSaveMessage message;
  message.header.ticket = 999;
  message.step = 4;
  message.image_bytes = 5000;
  message.wait = 1;
  message.wait_ms = 30'000;
  ASSERT_OK(trainer->SendRaw(message));
  EXPECT_FALSE(trainer->AwaitReply(999, 100));
  node.coordinator.SetCommits(true);
  auto reply = trainer->AwaitReply(999);
  ASSERT_TRUE(reply) << reply.error().ToString();
  EXPECT_EQ(reply->code, 0U) << GetText(reply->text);
}

TEST(Save, StepsOnlyGrow) {
  TestNode node;
  ASSERT_OK(node.Start());
  auto trainer = Connect(node);
  ASSERT_TRUE(trainer);
  ASSERT_TRUE(trainer->Save(5, 1000));
  ASSERT_TRUE(trainer->AwaitNotice(NoticeKind::kSealed, 5, Tier::kMemory));
  for (uint64_t step : {5, 4}) {
    auto reply = trainer->BeginSave(step, 5000);
    ASSERT_TRUE(reply);
    EXPECT_EQ(ErrorFromNumber(reply->code), ErrorCode::kAlreadyExists);
    EXPECT_THAT(GetText(reply->text), HasSubstr("step " + std::to_string(step)));
  }
}

TEST(Save, AnAbandonedSaveFreesItsSlotAndIsReportedAsFailed) {
  TestNode node;
  ASSERT_OK(node.Start());
  auto trainer = Connect(node);
  ASSERT_TRUE(trainer);
  const auto image = MakeImage(trainer->Identity(1), kTensorBytes);
  auto reply = trainer->BeginSave(1, image.size());
  ASSERT_TRUE(reply);
  trainer->Copy(reply->slot, image, image.size() / 2);
  ASSERT_OK(trainer->EndSave(reply->slot, 1, MessageType::kAbandonSave));
  EXPECT_TRUE(Eventually(
      [&] { return node.coordinator.failed(trainer->Key(1), Tier::kMemory).has_value(); }));
  EXPECT_TRUE(Eventually([&] {
    for (const auto& slot : node.Slots()) {
      if (slot.info.state != SlotState::kFree) return false;
    }
    return true;
  }));
  EXPECT_TRUE(trainer->Save(1, kTensorBytes));  // the step itself may be tried again
  EXPECT_TRUE(trainer->AwaitNotice(NoticeKind::kCommitted, 1, Tier::kDisk));
}

// A trainer in a child process that has sealed step 1 and copied half of step 2.
class ChildTrainer {
 public:
  explicit ChildTrainer(TestNode& node) {
    std::array<int, 2> pipe{};
    if (::pipe(pipe.data()) != 0) return;
    const std::string socket = node.socket();
    const std::string bytes = std::to_string(kTensorBytes);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(pipe[1], 1);
      ::execl(HOLDFAST_TEST_TRAINER, "trainer", socket.c_str(), "1", bytes.c_str(), nullptr);
      ::_exit(127);
    }
    ::close(pipe[1]);
    std::array<char, 5> text{};
    size_t got = 0;
    while (got < text.size()) {
      const ssize_t n = ::read(pipe[0], text.data() + got, text.size() - got);
      if (n <= 0) break;
      got += static_cast<size_t>(n);
    }
    ::close(pipe[0]);
    ready_ = got == text.size();
  }
  ~ChildTrainer() { Kill(); }
  bool ready() const { return ready_; }
  pid_t pid() const { return pid_; }
  void Kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  pid_t pid_ = 0;
  bool ready_ = false;
};

TEST(Trainer, DeathDuringACopyAbortsOnlyThatSave) {
  TestNode node;
  ASSERT_OK(node.Start());
  ChildTrainer child(node);
  ASSERT_TRUE(child.ready());
  const VersionId sealed{Incarnation{1}, Step{1}};
  const VersionId open{Incarnation{1}, Step{2}};
  EXPECT_TRUE(Eventually([&] {
    return node.coordinator.Holds({"job", sealed, Rank{0}}, Tier::kDisk);
  }));
  child.Kill();
  EXPECT_TRUE(Eventually([&] {
    return node.coordinator.failed({"job", open, Rank{0}}, Tier::kMemory).has_value();
  }));
  EXPECT_TRUE(node.coordinator.Holds({"job", sealed, Rank{0}}, Tier::kMemory));
  EXPECT_TRUE(Eventually([&] {
    int used = 0;
    for (const auto& slot : node.Slots()) {
      used += slot.info.state != SlotState::kFree ? 1 : 0;
    }
    return used == 1;
  }));
  // Nothing of the broken save is left on disk.
  for (const std::string& path : node.DataFiles()) {
    EXPECT_EQ(path.find(ToString(open)), std::string::npos) << path;
  }
  // The next start finds the sealed version's slot untouched.
  auto next = Connect(node, {.run_id = "run-2"});
  ASSERT_TRUE(next) << next.error().ToString();
  EXPECT_EQ(next->incarnation(), Incarnation{2});
  node.coordinator.SetDecision(RestoreDecision{sealed, Tier::kMemory});
  auto found = next->FindRestore();
  ASSERT_TRUE(found);
  ASSERT_EQ(found->code, 0U) << GetText(found->text);
  const auto image = MakeImage({"job", sealed, Rank{0}, 1}, kTensorBytes);
  ASSERT_EQ(found->image_bytes, image.size());
  EXPECT_TRUE(std::equal(image.begin(), image.end(), next->slot(found->slot).begin()));
}

TEST(Trainer, ASecondProcessForALivingRankIsRefused) {
  TestNode node;
  ASSERT_OK(node.Start());
  ChildTrainer child(node);
  ASSERT_TRUE(child.ready());
  auto second = Connect(node, {.run_id = "run-2"});
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(second.error().message(), HasSubstr(std::to_string(child.pid())));
  child.Kill();
  second = Connect(node, {.run_id = "run-2"});
  EXPECT_TRUE(second) << second.error().ToString();
}

TEST(Trainer, ARestartedAgentStillKnowsWhoRunsTheRank) {
  TestNode node;
  ASSERT_OK(node.Start());
  ChildTrainer child(node);
  ASSERT_TRUE(child.ready());
  node.Stop();
  ASSERT_OK(node.Start());
  // The old process has the slots mapped and may be in the middle of a copy.
  auto second = Connect(node, {.run_id = "run-2"});
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code(), ErrorCode::kFailedPrecondition);
  child.Kill();
  second = Connect(node, {.run_id = "run-2"});
  EXPECT_TRUE(second) << second.error().ToString();
}

TEST(Trainer, TheTrainerRecordSkipsMalformedLines) {
  const std::string dir = MakeTempDir();
  const std::vector<TrainerRecord> records = {{"a", Rank{0}, 12, 34}, {"b.c", Rank{7}, 56, 78}};
  ASSERT_OK(WriteTrainers(dir + "/t", records));
  EXPECT_EQ(ReadTrainers(dir + "/t"), records);
  EXPECT_TRUE(ReadTrainers(dir + "/absent").empty());
  std::ofstream(dir + "/t") << "../x 0 1 2\na 0 12 34\nb nonsense";
  EXPECT_EQ(ReadTrainers(dir + "/t"), std::vector<TrainerRecord>({records[0]}));
  EXPECT_GT(StartTicksOf(::getpid()), 0U);
  EXPECT_EQ(StartTicksOf(0x7fffffff), 0U);
  RemoveTree(dir);
}

TEST(Trainer, AReconnectFindsTheSameMemoryAndIncarnation) {
  TestNode node;
  ASSERT_OK(node.Start());
  auto first = Connect(node);
  ASSERT_TRUE(first);
  ASSERT_TRUE(first->Save(1, 1000));
  ASSERT_TRUE(first->AwaitNotice(NoticeKind::kSealed, 1, Tier::kMemory));
  const uint64_t segment = first->welcome().segment_id;
  first->HangUp();
  // The coordinator is away, but the agent has a record of the incarnation of this run ID.
  node.coordinator.SetReachable(false);
  auto again = Connect(node);
  ASSERT_TRUE(again) << again.error().ToString();
  EXPECT_EQ(again->incarnation(), Incarnation{1});
  EXPECT_EQ(again->welcome().segment_id, segment);
  auto other = Connect(node, {.run_id = "run-2"});
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code(), ErrorCode::kUnavailable);
}

TEST(Trainer, AnOlderIncarnationIsFenced) {
  TestNode node;
  ASSERT_OK(node.Start());
  auto old_run = Connect(node, {.rank = 0, .world = 2});
  ASSERT_TRUE(old_run);
  const auto image = MakeImage(old_run->Identity(1), kTensorBytes);
  auto reply = old_run->BeginSave(1, image.size());
  ASSERT_TRUE(reply);
  old_run->Copy(reply->slot, image, 1'500'000);
  // Another rank begins the next start of the job.
  auto new_run = Connect(node, {.run_id = "run-2", .rank = 1, .world = 2});
  ASSERT_TRUE(new_run) << new_run.error().ToString();
  EXPECT_TRUE(old_run->AwaitNotice(NoticeKind::kFenced, 0, Tier::kMemory));
  EXPECT_TRUE(Eventually(
      [&] { return node.coordinator.failed(old_run->Key(1), Tier::kMemory).has_value(); }));
  auto refused = old_run->BeginSave(2, image.size());
  ASSERT_TRUE(refused);
  EXPECT_EQ(ErrorFromNumber(refused->code), ErrorCode::kFenced);
}

TEST(Disk, AFullDiskDoesNotAffectMemoryOrTraining) {
  TestNode node({.simulated_disk = true});
  ASSERT_OK(node.Start());
  auto trainer = Connect(node);
  ASSERT_TRUE(trainer);
  ASSERT_TRUE(trainer->Save(1, kTensorBytes));
  ASSERT_TRUE(trainer->AwaitNotice(NoticeKind::kCommitted, 1, Tier::kDisk));
  const uint64_t capacity = node.disk.used_bytes();
  node.disk.SetCapacity(capacity);
  ASSERT_TRUE(trainer->Save(2, kTensorBytes));
  auto failed = trainer->AwaitNotice(NoticeKind::kFailed, 2, Tier::kDisk);
  ASSERT_TRUE(failed);
  EXPECT_EQ(ErrorFromNumber(failed->code), ErrorCode::kOutOfSpace);
  EXPECT_TRUE(trainer->AwaitNotice(NoticeKind::kCommitted, 2, Tier::kMemory));
  EXPECT_TRUE(Eventually(
      [&] { return node.coordinator.failed(trainer->Key(2), Tier::kDisk).has_value(); }));
  ASSERT_EQ(node.coordinator.warnings().size(), 1U);
  EXPECT_THAT(node.coordinator.warnings()[0], HasSubstr("disk full"));
  // With room again, the next version is durable and the warning is cleared.
  node.disk.SetCapacity(1ULL << 40);
  ASSERT_TRUE(trainer->Save(3, kTensorBytes));
  EXPECT_TRUE(trainer->AwaitNotice(NoticeKind::kCommitted, 3, Tier::kDisk));
  EXPECT_TRUE(Eventually([&] { return node.coordinator.warnings().empty(); }));
  EXPECT_TRUE(node.coordinator.Holds(trainer->Key(1), Tier::kDisk));
}

TEST(Disk, AFailedSyncIsRepeatedWithANewFile) {
  TestNode node({.simulated_disk = true});
  ASSERT_OK(node.Start());
  auto trainer = Connect(node);
  ASSERT_TRUE(trainer);
  node.disk.Inject(
      {.op = SimOp::kSync, .effect = SimEffect::kIoError, .path = [](const std::string& path) {
         return path.find("safetensors") != std::string::npos;
       }});
  const uint64_t created = node.disk.count(SimOp::kCreate);
  ASSERT_TRUE(trainer->Save(1, kTensorBytes));
  EXPECT_TRUE(trainer->AwaitNotice(NoticeKind::kCommitted, 1, Tier::kDisk));
  EXPECT_GE(node.disk.count(SimOp::kCreate), created + 3);  // two images and a seal
  // The durable data is correct after a power failure.
  node.Stop();
  node.disk.Crash(SimSurvival::kNothing);
  ASSERT_OK(node.Start());
  EXPECT_TRUE(node.volume->VerifyShard(trainer->Key(1), true).ok());
}

TEST(Disk, ABrokenDiskIsReportedAfterTheSecondAttempt) {
  TestNode node({.simulated_disk = true});
  ASSERT_OK(node.Start());
  auto trainer = Connect(node);
  ASSERT_TRUE(trainer);
  node.disk.Inject(
      {.op = SimOp::kWrite, .effect = SimEffect::kIoError, .times = 1'000'000, .path = {}});
  ASSERT_TRUE(trainer->Save(1, kTensorBytes));
  auto failed = trainer->AwaitNotice(NoticeKind::kFailed, 1, Tier::kDisk);
  ASSERT_TRUE(failed);
  EXPECT_EQ(ErrorFromNumber(failed->code), ErrorCode::kIoError);
  EXPECT_TRUE(trainer->AwaitNotice(NoticeKind::kCommitted, 1, Tier::kMemory));
  EXPECT_TRUE(Eventually([&] { return !node.coordinator.warnings().empty(); }));
  node.disk.ClearFaults();
  ASSERT_TRUE(trainer->Save(2, kTensorBytes));
  EXPECT_TRUE(trainer->AwaitNotice(NoticeKind::kCommitted, 2, Tier::kDisk));
}

TEST(Disk, AVersionSupersededByASlowDiskIsReported) {
  TestNode node({.simulated_disk = true});
  ASSERT_OK(node.Start());
  auto trainer = Connect(node);
  ASSERT_TRUE(trainer);
  std::atomic<bool> writing{false};
  node.disk.Inject({.op = SimOp::kSync,
                    .effect = SimEffect::kDelay,
                    .times = 1,
                    .path =
                        [&](const std::string& path) {
                          const bool image = path.find("safetensors") != std::string::npos;
                          if (image) writing = true;
                          return image;
                        },
                    .delay_ms = 1500});
  ASSERT_TRUE(trainer->Save(1, 10'000));
  ASSERT_TRUE(trainer->AwaitNotice(NoticeKind::kCommitted, 1, Tier::kMemory));
  // A version whose write has begun is not superseded.
  ASSERT_TRUE(Eventually([&] { return writing.load(); }));
  for (uint64_t step = 2; step <= 6; ++step) {
    ASSERT_TRUE(trainer->Save(step, 10'000));
    ASSERT_TRUE(trainer->AwaitNotice(NoticeKind::kCommitted, step, Tier::kMemory));
  }
  auto superseded = trainer->AwaitNotice(NoticeKind::kFailed, 2, Tier::kDisk);
  ASSERT_TRUE(superseded);
  EXPECT_EQ(ErrorFromNumber(superseded->code), ErrorCode::kAborted);
  EXPECT_TRUE(Eventually([&] { return node.coordinator.Holds(trainer->Key(1), Tier::kDisk); }));
  ASSERT_TRUE(trainer->AwaitNotice(NoticeKind::kCommitted, 1, Tier::kDisk));
  ASSERT_TRUE(trainer->Save(7, 10'000));
  EXPECT_TRUE(Eventually([&] {
    return node.coordinator.Holds(trainer->Key(6), Tier::kDisk) ||
           node.coordinator.Holds(trainer->Key(7), Tier::kDisk);
  }));
}

TEST(Disk, FollowPaceWritesTheTarget) {
  TestNode node({.disk_every_steps = 0});
  ASSERT_OK(node.Start());
  auto trainer = Connect(node);
  ASSERT_TRUE(trainer);
  node.coordinator.SetDiskTarget(Step{3});
  for (uint64_t step = 1; step <= 3; ++step) {
    ASSERT_TRUE(trainer->Save(step, 10'000));
    ASSERT_TRUE(trainer->AwaitNotice(NoticeKind::kCommitted, step, Tier::kMemory));
  }
  EXPECT_TRUE(trainer->AwaitNotice(NoticeKind::kCommitted, 3, Tier::kDisk));
  EXPECT_FALSE(node.coordinator.Holds(trainer->Key(1), Tier::kDisk));
  EXPECT_FALSE(node.coordinator.Holds(trainer->Key(2), Tier::kDisk));
}

TEST(Disk, AnAbortedVersionIsNotWritten) {
  TestNode node({.disk_every_steps = 0});
  ASSERT_OK(node.Start());
  node.coordinator.SetCommits(false);
  auto trainer = Connect(node);
  ASSERT_TRUE(trainer);
  node.coordinator.SetDiskTarget(Step{9});
  for (uint64_t step = 1; step <= 2; ++step) {
    ASSERT_TRUE(trainer->Save(step, 10'000));
    ASSERT_TRUE(trainer->AwaitNotice(NoticeKind::kSealed, step, Tier::kMemory));
  }
  node.coordinator.SetAborted(trainer->Version(1));
  node.coordinator.SetDiskTarget(Step{1});
  EXPECT_TRUE(Eventually([&] { return node.coordinator.Holds(trainer->Key(2), Tier::kDisk); }));
  EXPECT_FALSE(node.coordinator.Holds(trainer->Key(1), Tier::kDisk));
}

TEST(Disk, RemovalDeletesAndReports) {
  TestNode node;
  ASSERT_OK(node.Start());
  auto trainer = Connect(node);
  ASSERT_TRUE(trainer);
  ASSERT_TRUE(trainer->Save(1, 10'000));
  ASSERT_TRUE(trainer->AwaitNotice(NoticeKind::kCommitted, 1, Tier::kDisk));
  node.node->OnRemoveVersion({"job", trainer->Version(1), Tier::kDisk});
  EXPECT_TRUE(
      Eventually([&] { return node.coordinator.WasRemoved(trainer->Key(1), Tier::kDisk); }));
  EXPECT_TRUE(node.volume->List().empty());
  EXPECT_TRUE(node.coordinator.Holds(trainer->Key(1), Tier::kMemory));
}

constexpr uint64_t kLargeSlotBytes = 48 << 20;  // three of them are over half of the arena

TEST(Memory, AJobThatIsOverAndOnDiskMakesRoom) {
  TestNode node;
  ASSERT_OK(node.Start());
  auto old_job = Connect(node, {.slot_bytes = kLargeSlotBytes});
  ASSERT_TRUE(old_job);
  ASSERT_TRUE(old_job->Save(1, kTensorBytes));
  ASSERT_TRUE(old_job->AwaitNotice(NoticeKind::kCommitted, 1, Tier::kDisk));
  // Memory is not reassigned while the old job runs.
  auto new_job = Connect(node, {.job = "new", .slot_bytes = kLargeSlotBytes});
  ASSERT_FALSE(new_job);
  EXPECT_EQ(new_job.error().code(), ErrorCode::kResourceExhausted);
  old_job->HangUp();
  EXPECT_TRUE(Eventually([&] {
    new_job = Connect(node, {.job = "new", .slot_bytes = kLargeSlotBytes});
    return new_job.has_value();
  }));
  ASSERT_TRUE(new_job) << new_job.error().ToString();
  EXPECT_TRUE(node.coordinator.WasRemoved(old_job->Key(1), Tier::kMemory));
  ASSERT_TRUE(new_job->Save(1, kTensorBytes));
  EXPECT_TRUE(new_job->AwaitNotice(NoticeKind::kCommitted, 1, Tier::kDisk));
  EXPECT_TRUE(node.volume->VerifyShard(old_job->Key(1), true).ok());
}

TEST(Memory, AVersionOnlyInMemoryStays) {
  TestNode node({.simulated_disk = true});
  ASSERT_OK(node.Start());
  auto old_job = Connect(node, {.slot_bytes = kLargeSlotBytes});
  ASSERT_TRUE(old_job);
  node.disk.SetCapacity(node.disk.used_bytes());
  ASSERT_TRUE(old_job->Save(1, kTensorBytes));
  ASSERT_TRUE(old_job->AwaitNotice(NoticeKind::kFailed, 1, Tier::kDisk));
  old_job->HangUp();
  EXPECT_FALSE(Eventually(
      [&] { return Connect(node, {.job = "new", .slot_bytes = kLargeSlotBytes}).has_value(); },
      500));
  // The job itself cannot get larger slots either: the arena has no room for both segments.
  auto larger = Connect(node, {.slot_bytes = kLargeSlotBytes + (4 << 20)});
  ASSERT_FALSE(larger);
  EXPECT_EQ(larger.error().code(), ErrorCode::kResourceExhausted) << larger.error().ToString();
  EXPECT_TRUE(node.coordinator.Holds(old_job->Key(1), Tier::kMemory));
  auto as_before = Connect(node, {.run_id = "run-2", .slot_bytes = kLargeSlotBytes});
  ASSERT_TRUE(as_before) << as_before.error().ToString();
  EXPECT_EQ(as_before->welcome().segment_id, old_job->welcome().segment_id);
  EXPECT_TRUE(node.coordinator.Holds(old_job->Key(1), Tier::kMemory));
}

TEST(Memory, LargerSlotsReplaceVersionsThatAreOnDisk) {
  TestNode node;
  ASSERT_OK(node.Start());
  auto first = Connect(node);
  ASSERT_TRUE(first);
  ASSERT_TRUE(first->Save(1, kTensorBytes));
  ASSERT_TRUE(first->AwaitNotice(NoticeKind::kCommitted, 1, Tier::kDisk));
  first->HangUp();
  Result<TestTrainer> larger = Fail(UnavailableError("not tried"));
  EXPECT_TRUE(Eventually([&] {
    larger = Connect(node, {.slot_bytes = 16 << 20});
    return larger.has_value();
  }));
  ASSERT_TRUE(larger) << larger.error().ToString();
  EXPECT_EQ(larger->welcome().slot_bytes, 16U << 20);
  EXPECT_NE(larger->welcome().segment_id, first->welcome().segment_id);
  ASSERT_TRUE(larger->Save(2, 10'000'000));
  EXPECT_TRUE(larger->AwaitNotice(NoticeKind::kCommitted, 2, Tier::kDisk));
}

}  // namespace
}  // namespace holdfast::agent
