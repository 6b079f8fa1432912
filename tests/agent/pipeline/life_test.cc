#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <future>

#include "agent/pipeline/parity_log.h"
#include "agent/pipeline/report_queue.h"
#include "tests/agent/pipeline/harness.h"

// The end of a job: its memory, its threads and its newest version.

namespace holdfast::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kTensorBytes = 2'500'000;

#define ASSERT_OK(expr)                                  \
  do {                                                   \
    const auto& ok_status = (expr);                      \
    ASSERT_TRUE(ok_status.ok()) << ok_status.ToString(); \
  } while (false)

size_t EntriesOf(const std::string& folder) {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

LocalRank Of(const TestTrainer& trainer, bool goodbye) {
  const ShardKey key = trainer.Key(1);
  return {key.job, key.version.incarnation, key.rank, goodbye};
}

void SendGoodbye(TestTrainer& trainer) {
  MessageHeader goodbye{.type = MessageType::kGoodbye};
  ASSERT_OK(trainer.SendRaw(goodbye));
}

TEST(Life, TrainersThatJoinAndLeaveAreReported) {
  TestNode node;
  ASSERT_OK(node.Start());
  auto trainer = TestTrainer::Connect(node.socket(), {});
  ASSERT_TRUE(trainer) << trainer.error().ToString();
  EXPECT_TRUE(
      Eventually([&] { return node.coordinator.ranks() == std::vector{Of(*trainer, false)}; }));
  SendGoodbye(*trainer);
  EXPECT_TRUE(
      Eventually([&] { return node.coordinator.ranks() == std::vector{Of(*trainer, true)}; }));
  auto again = TestTrainer::Connect(node.socket(), {.run_id = "run-2"});
  ASSERT_TRUE(again) << again.error().ToString();
  EXPECT_TRUE(
      Eventually([&] { return node.coordinator.ranks() == std::vector{Of(*again, false)}; }));
  again->HangUp();
  EXPECT_TRUE(Eventually([&] { return node.coordinator.ranks().empty(); }))
      << "the trainer left without a Goodbye";
}

TEST(Life, AWaitForATierIsReported) {
  TestNode node;
  ASSERT_OK(node.Start());
  auto trainer = TestTrainer::Connect(node.socket(), {});
  ASSERT_TRUE(trainer) << trainer.error().ToString();
  EndSaveMessage message;
  message.header.type = MessageType::kWantTier;
  message.slot = static_cast<uint32_t>(Tier::kDisk);
  message.step = 7;
  ASSERT_OK(trainer->SendRaw(message));
  ASSERT_TRUE(Eventually([&] { return node.coordinator.wanted().size() == 1; }));
  EXPECT_EQ(node.coordinator.wanted()[0].version, trainer->Version(7));
  message.slot = 77;
  ASSERT_OK(trainer->SendRaw(message));
  EXPECT_TRUE(trainer->AwaitClosed()) << "no such tier";
}

TEST(Life, AReleasedJobFreesMemoryAndThreadsAndKeepsItsDisk) {
  TestNode node({.arena_bytes = 40 << 20});
  ASSERT_OK(node.Start());
  const size_t threads = EntriesOf("/proc/self/task");
  const uint64_t reserved = node.arena->usage().reserved_bytes;
  ShardKey key;
  {
    auto trainer = TestTrainer::Connect(node.socket(), {.job = "first"});
    ASSERT_TRUE(trainer) << trainer.error().ToString();
    key = trainer->Key(1);
    ASSERT_TRUE(trainer->Save(1, kTensorBytes));
    ASSERT_TRUE(trainer->AwaitNotice(NoticeKind::kCommitted, 1, Tier::kDisk));
    EXPECT_GT(EntriesOf("/proc/self/task"), threads);
    // The job is not released while its trainer is connected.
    node.coordinator.UpdateJob("first", [](JobState& state) { state.release = true; });
    ASSERT_TRUE(trainer->Save(2, kTensorBytes));
    ASSERT_TRUE(trainer->AwaitNotice(NoticeKind::kCommitted, 2, Tier::kDisk));
    SendGoodbye(*trainer);
    ASSERT_TRUE(trainer->AwaitClosed());
  }
  node.coordinator.UpdateJob("first", [](JobState& state) { state.release = true; });
  EXPECT_TRUE(Eventually([&] { return node.arena->usage().reserved_bytes == reserved; }));
  EXPECT_TRUE(Eventually([&] { return EntriesOf("/proc/self/task") <= threads; }));
  EXPECT_TRUE(node.coordinator.WasRemoved(key, Tier::kMemory));
  EXPECT_TRUE(Eventually([&] { return node.coordinator.ranks().empty(); }));
  auto seal = node.volume->ReadSeal({key.job, {key.version.incarnation, Step{2}}, key.rank});
  EXPECT_TRUE(seal.has_value()) << seal.error().ToString();
}

TEST(Life, AVersionOnlyInMemoryIsNotReleased) {
  TestNode node({.disk_every_steps = 1'000'000});
  ASSERT_OK(node.Start());
  auto trainer = TestTrainer::Connect(node.socket(), {});
  ASSERT_TRUE(trainer) << trainer.error().ToString();
  ASSERT_TRUE(trainer->Save(1, kTensorBytes));
  ASSERT_TRUE(trainer->AwaitNotice(NoticeKind::kCommitted, 1, Tier::kMemory));
  const ShardKey key = trainer->Key(1);
  SendGoodbye(*trainer);
  ASSERT_TRUE(trainer->AwaitClosed());
  node.coordinator.UpdateJob("job", [](JobState& state) { state.release = true; });
  Clock::Real().SleepFor(std::chrono::milliseconds(1500));
  EXPECT_FALSE(node.coordinator.WasRemoved(key, Tier::kMemory));
  EXPECT_GT(node.arena->usage().segments, 0U);
}

TEST(Life, ManyJobsInTurnLeakNothing) {
  const int jobs = std::getenv("HOLDFAST_MANY_JOBS") != nullptr ? 200 : 30;
  TestNode node({.arena_bytes = 40 << 20});  // room for two of them
  ASSERT_OK(node.Start());
  std::vector<size_t> threads;
  std::vector<size_t> descriptors;
  for (int i = 0; i < jobs; ++i) {
    const std::string job = "job-" + std::to_string(i);
    auto trainer = TestTrainer::Connect(node.socket(), {.job = job});
    ASSERT_TRUE(trainer) << job << ": " << trainer.error().ToString();
    ASSERT_TRUE(trainer->Save(1, kTensorBytes));
    ASSERT_TRUE(trainer->AwaitNotice(NoticeKind::kCommitted, 1, Tier::kDisk)) << job;
    SendGoodbye(*trainer);
    ASSERT_TRUE(trainer->AwaitClosed());
    node.coordinator.UpdateJob(job, [](JobState& state) { state.release = true; });
    ASSERT_TRUE(Eventually([&] { return node.arena->usage().segments == 0; })) << job;
    threads.push_back(EntriesOf("/proc/self/task"));
    descriptors.push_back(EntriesOf("/proc/self/fd"));
  }
  EXPECT_LE(threads.back(), threads[2]);
  EXPECT_LE(descriptors.back(), descriptors[2] + 2);
}

TEST(Life, AForgottenJobIsRemovedFromMemoryAndDisk) {
  TestNode node;
  ASSERT_OK(node.Start());
  auto other = TestTrainer::Connect(node.socket(), {.job = "other"});
  ASSERT_TRUE(other);
  ASSERT_TRUE(other->Save(1, kTensorBytes));
  ASSERT_TRUE(other->AwaitNotice(NoticeKind::kCommitted, 1, Tier::kDisk));
  auto trainer = TestTrainer::Connect(node.socket(), {.job = "forgotten"});
  ASSERT_TRUE(trainer) << trainer.error().ToString();
  for (uint64_t step : {1, 2}) {
    ASSERT_TRUE(trainer->Save(step, kTensorBytes));
    ASSERT_TRUE(trainer->AwaitNotice(NoticeKind::kCommitted, step, Tier::kDisk));
  }
  const Incarnation incarnation = trainer->incarnation();
  SendGoodbye(*trainer);
  ASSERT_TRUE(trainer->AwaitClosed());
  JobState state;
  state.job = "forgotten";
  state.incarnation = incarnation;
  state.forget = true;
  node.node->OnJobState(state);
  EXPECT_TRUE(Eventually([&] {
    return node.coordinator.WasRemoved(trainer->Key(1), Tier::kDisk) &&
           node.coordinator.WasRemoved(trainer->Key(2), Tier::kDisk) &&
           node.coordinator.WasRemoved(trainer->Key(2), Tier::kMemory);
  }));
  EXPECT_TRUE(Eventually([&] { return node.arena->usage().segments == 1; }));
  for (const StoredShard& shard : node.volume->List()) EXPECT_EQ(shard.identity.job, "other");
  EXPECT_EQ(node.volume->List().size(), 1U);
}

TEST(Life, ANewJobOfAForgottenNameKeepsItsVersions) {
  TestNode node;
  ASSERT_OK(node.Start());
  auto trainer = TestTrainer::Connect(node.socket(), {.run_id = "run-1"});
  ASSERT_TRUE(trainer);
  ASSERT_TRUE(trainer->Save(1, kTensorBytes));
  ASSERT_TRUE(trainer->AwaitNotice(NoticeKind::kCommitted, 1, Tier::kDisk));
  const ShardKey old = trainer->Key(1);
  SendGoodbye(*trainer);
  ASSERT_TRUE(trainer->AwaitClosed());
  auto again = TestTrainer::Connect(node.socket(), {.run_id = "run-2"});
  ASSERT_TRUE(again);
  ASSERT_TRUE(again->Save(2, kTensorBytes));
  ASSERT_TRUE(again->AwaitNotice(NoticeKind::kCommitted, 2, Tier::kDisk));
  JobState state;
  state.job = "job";
  state.incarnation = old.version.incarnation;
  state.forget = true;
  node.node->OnJobState(state);
  EXPECT_TRUE(Eventually([&] { return node.coordinator.WasRemoved(old, Tier::kDisk); }));
  EXPECT_TRUE(node.volume->ReadSeal(again->Key(2)).has_value());
  EXPECT_TRUE(again->Save(3, kTensorBytes).has_value());
}

TEST(Life, AFlushWritesAVersionBeforeTheTarget) {
  TestNode node;
  ASSERT_OK(node.Start());
  node.coordinator.SetDiskTarget(Step{100});
  auto trainer = TestTrainer::Connect(node.socket(), {});
  ASSERT_TRUE(trainer) << trainer.error().ToString();
  node.coordinator.Broadcast("job");
  ASSERT_TRUE(trainer->Save(5, kTensorBytes));
  ASSERT_TRUE(trainer->AwaitNotice(NoticeKind::kCommitted, 5, Tier::kMemory));
  EXPECT_FALSE(node.coordinator.Holds(trainer->Key(5), Tier::kDisk));
  EXPECT_TRUE(node.node->Flush(20'000));
  EXPECT_TRUE(node.coordinator.Holds(trainer->Key(5), Tier::kDisk));
}

TEST(Reserving, RanksReserveInParallelAndGetProgressNotices) {
  std::atomic<int> waiting{0};
  std::promise<void> release;
  const std::shared_future<void> released(release.get_future());
  TestNodeOptions options;
  options.before_reserve = [&](const SegmentOwner&) {
    ++waiting;
    released.wait();
  };
  TestNode node(options);
  ASSERT_OK(node.Start());
  std::vector<TestTrainer> trainers;
  for (uint32_t rank : {0U, 1U}) {
    auto trainer = TestTrainer::ConnectSilently(node.socket());
    ASSERT_TRUE(trainer);
    HelloMessage hello;
    hello.rank = rank;
    hello.world = 2;
    hello.slot_bytes = 4 << 20;
    PutText(hello.job, "job");
    PutText(hello.run_id, "run-1");
    ASSERT_OK(trainer->SendRaw(hello));
    trainers.push_back(*std::move(trainer));
  }
  EXPECT_TRUE(Eventually([&] { return waiting == 2; })) << "one rank waits for the other";
  for (TestTrainer& trainer : trainers) {
    auto notice = trainer.AwaitNotice(NoticeKind::kReserving, 0, Tier::kMemory);
    const std::string text = notice ? GetText(notice->text) : notice.error().ToString();
    EXPECT_THAT(text, HasSubstr("12 MiB"));
  }
  release.set_value();
  EXPECT_TRUE(Eventually([&] { return node.arena->usage().segments == 2; }));
}

TEST(ParityLog, LogsAtMostOneLineAMinuteWithTheCount) {
  ParityLog log;
  Clock::TimePoint now{};
  ASSERT_TRUE(log.CountNotMade(now).has_value()) << "the first line is not delayed";
  for (int i = 0; i < 500; ++i) {
    now += std::chrono::milliseconds(100);
    log.CountMade();
    EXPECT_FALSE(log.CountNotMade(now).has_value());
  }
  now += std::chrono::seconds(20);
  const auto line = log.CountNotMade(now);
  ASSERT_TRUE(line.has_value());
  EXPECT_EQ(line->not_made, 501U);
  EXPECT_EQ(line->made, 500U);
}

TEST(ReportQueueRanks, AreInEveryBatchAndWakeTheSenderOnChange) {
  ReportQueue queue;
  EXPECT_FALSE(queue.AwaitPending(0));
  const LocalRank rank{"job", Incarnation{1}, Rank{0}};
  queue.SetRanks({rank});
  EXPECT_TRUE(queue.AwaitPending(0));
  EXPECT_THAT(queue.Take().ranks, ElementsAre(rank));
  queue.SetRanks({rank});
  EXPECT_FALSE(queue.AwaitPending(0));
  EXPECT_THAT(queue.Take().ranks, ElementsAre(rank)) << "ranks are sent even if unchanged";
  queue.SetRanks({});
  EXPECT_TRUE(queue.AwaitPending(0));
  EXPECT_THAT(queue.Inventory().ranks, IsEmpty());
}

TEST(ReportQueueWanted, IsRepeatedUntilItIsAcknowledged) {
  ReportQueue queue;
  queue.Add(TierWanted{"job", {Incarnation{1}, Step{3}}, Tier::kDisk});
  ReportBatch batch = queue.Take();
  ASSERT_EQ(batch.wanted.size(), 1U);
  EXPECT_TRUE(queue.Take().wanted.empty());
  queue.Return(std::move(batch));
  EXPECT_EQ(queue.Take().wanted.size(), 1U);
}

}  // namespace
}  // namespace holdfast::agent
