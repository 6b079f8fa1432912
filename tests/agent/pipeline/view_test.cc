#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "agent/api/view_listing.h"
#include "storage/format/image.h"
#include "tests/agent/pipeline/harness.h"

// A version seen whole by the trainer of a later start, and memory that is set aside for it.

namespace holdfast::agent {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kTensorBytes = 3'300'000;

/// The memory of a view, as its trainer has it.
class Mapped {
 public:
  explicit Mapped(UniqueFd fd) : fd_(std::move(fd)) {
    struct stat info {};
    if (::fstat(fd_.get(), &info) != 0) return;
    bytes_ = static_cast<size_t>(info.st_size);
    base_ = static_cast<std::byte*>(::mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, fd_.get(), 0));
  }
  ~Mapped() { ::munmap(base_, bytes_); }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;
  std::span<const std::byte> place(uint32_t index) const {
    return {base_ + index * kViewPlaceBytes, kViewPlaceBytes};
  }
  std::span<const std::byte> listing(uint64_t bytes) const {
    return std::span<const std::byte>(base_, bytes_).subspan(kViewWindowBytes, bytes);
  }

 private:
  UniqueFd fd_;
  std::byte* base_ = nullptr;
  size_t bytes_ = 0;
};

class ViewTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Status started = node_.Start();
    ASSERT_TRUE(started.ok()) << started.ToString();
  }
  explicit ViewTest(const TestNodeOptions& options = {}) : node_(options) {}
  /// One run that saved steps 1..last, all durable, and left.
  void TrainAndLeave(uint64_t last) {
    auto trainer = TestTrainer::Connect(node_.socket(), {});
    ASSERT_TRUE(trainer) << trainer.error().ToString();
    for (uint64_t step = 1; step <= last; ++step) {
      auto saved = trainer->Save(step, kTensorBytes);
      ASSERT_TRUE(saved) << saved.error().ToString();
      ASSERT_TRUE(trainer->AwaitNotice(NoticeKind::kCommitted, step, Tier::kDisk));
    }
    node_.coordinator.SetDecision(RestoreDecision{Shard(last).version, Tier::kMemory, /*world=*/1});
  }
  std::unique_ptr<TestTrainer> NextRun(const TestTrainer::Options& options) {
    auto trainer = TestTrainer::Connect(node_.socket(), options);
    EXPECT_TRUE(trainer) << trainer.error().ToString();
    return trainer ? std::make_unique<TestTrainer>(*std::move(trainer)) : nullptr;
  }
  static ShardIdentity Shard(uint64_t step) {
    return {"job", {Incarnation{1}, Step{step}}, Rank{0}, 1};
  }
  ReplyMessage Open(TestTrainer& trainer, UniqueFd* memory) {
    auto opened = trainer.OpenView(memory);
    EXPECT_TRUE(opened) << opened.error().ToString();
    return opened.value_or(ReplyMessage{});
  }
  Status Read(TestTrainer& trainer, const ReadViewMessage& message) {
    auto reply = trainer.ReadView(message);
    if (!reply) return reply.error();
    return Status(ErrorFromNumber(reply->code), GetText(reply->text));
  }
  /// The whole image, by way of the places.
  void ExpectImage(TestTrainer& trainer, uint32_t view, const Mapped& memory, uint64_t step) {
    const std::vector<std::byte> image = MakeImage(Shard(step), kTensorBytes);
    ReadViewMessage read;
    read.view = view;
    read.bytes = image.size();
    read.place = 3;
    ASSERT_LE(read.bytes, kViewPlaceBytes);
    const Status status = Read(trainer, read);
    ASSERT_TRUE(status.ok()) << status.ToString();
    EXPECT_TRUE(std::equal(image.begin(), image.end(), memory.place(3).begin()));
  }

  TestNode node_;
};

TEST_F(ViewTest, AnotherWorldListsAndReadsTheShard) {
  ASSERT_NO_FATAL_FAILURE(TrainAndLeave(2));
  auto trainer = NextRun({.run_id = "run-2", .rank = 1, .world = 2});
  UniqueFd fd;
  const ReplyMessage opened = Open(*trainer, &fd);
  ASSERT_EQ(opened.code, 0U) << GetText(opened.text);
  EXPECT_EQ(opened.step, 2U);
  EXPECT_EQ(opened.world, 1U);
  const Mapped memory(std::move(fd));
  const auto listing = ParseListing(memory.listing(opened.image_bytes));
  ASSERT_TRUE(listing.has_value()) << listing.error().ToString();
  ASSERT_EQ(listing->size(), 1U);
  EXPECT_TRUE(listing->at(0).near);
  const auto image = ParseImage(listing->at(0).header, listing->at(0).image_bytes);
  ASSERT_TRUE(image.has_value()) << image.error().ToString();
  EXPECT_EQ(image->identity, Shard(2));
  ExpectImage(*trainer, opened.slot, memory, 2);
}

TEST_F(ViewTest, APlaceHasNoMemoryBeforeItIsReadInto) {
  ASSERT_NO_FATAL_FAILURE(TrainAndLeave(2));
  auto trainer = NextRun({.run_id = "run-2", .rank = 1, .world = 2});
  UniqueFd fd;
  const ReplyMessage opened = Open(*trainer, &fd);
  ASSERT_EQ(opened.code, 0U) << GetText(opened.text);
  const UniqueFd same(::dup(fd.get()));
  const auto allocated = [&] {
    struct stat info {};
    EXPECT_EQ(::fstat(same.get(), &info), 0);
    return static_cast<uint64_t>(info.st_blocks) * 512;
  };
  EXPECT_GT(allocated(), 0U) << "the listing";
  EXPECT_LT(allocated(), kViewPlaceBytes);
  const Mapped memory(std::move(fd));
  ASSERT_NO_FATAL_FAILURE(ExpectImage(*trainer, opened.slot, memory, 2));
  EXPECT_GT(allocated(), kTensorBytes);
  EXPECT_LT(allocated(), 2 * kViewPlaceBytes);
}

TEST_F(ViewTest, WhatIsDamagedInMemoryComesFromTheDisk) {
  ASSERT_NO_FATAL_FAILURE(TrainAndLeave(1));
  // The trainer of the rank itself can reach its slots, and so spoil them.
  auto trainer = NextRun({.run_id = "run-2"});
  for (uint32_t slot = 0; slot < trainer->welcome().slots; ++slot) {
    trainer->slot(slot)[2'000'000] ^= std::byte{1};
  }
  UniqueFd fd;
  const ReplyMessage opened = Open(*trainer, &fd);
  ASSERT_EQ(opened.code, 0U) << GetText(opened.text);
  EXPECT_EQ(opened.own_slot, kNoSlot) << "nobody has checked it";
  const Mapped memory(std::move(fd));
  ASSERT_NO_FATAL_FAILURE(ExpectImage(*trainer, opened.slot, memory, 1));
  EXPECT_TRUE(Eventually([&] { return node_.coordinator.WasGone(Shard(1).key(), Tier::kMemory); }))
      << "the damage was not reported";
}

TEST_F(ViewTest, WhatWasCheckedInItsMemoryIsShownWhereItIs) {
  ASSERT_NO_FATAL_FAILURE(TrainAndLeave(1));
  auto trainer = NextRun({.run_id = "run-2"});
  PrepareShard prepare;
  prepare.identity = Shard(1);
  prepare.source_node = "node-0";
  const uint64_t request = node_.coordinator.Prepare(prepare);
  UniqueFd fd;
  // Without waiting for that: the answer does.
  const ReplyMessage opened = Open(*trainer, &fd);
  ASSERT_EQ(opened.code, 0U) << GetText(opened.text);
  EXPECT_TRUE(node_.coordinator.prepared(request).has_value());
  ASSERT_LT(opened.own_slot, trainer->welcome().slots);
  const auto expect_whole = [&] {
    const auto image = MakeImage(Shard(1), kTensorBytes);
    EXPECT_TRUE(std::equal(image.begin(), image.end(), trainer->slot(opened.own_slot).begin()));
  };
  expect_whole();
  // While it is open newer versions take the other slots.
  for (uint64_t step = 2; step <= 5; ++step) {
    const auto saved = trainer->Save(step, kTensorBytes);
    ASSERT_TRUE(saved) << saved.error().ToString();
    EXPECT_NE(*saved, opened.own_slot);
    ASSERT_TRUE(trainer->AwaitNotice(NoticeKind::kCommitted, step, Tier::kDisk));
  }
  expect_whole();
  CloseViewMessage close;
  close.view = opened.slot;
  ASSERT_TRUE(trainer->SendRaw(close).ok());
  bool taken = false;
  for (uint64_t step = 6; step <= 9; ++step) {
    const auto saved = trainer->Save(step, kTensorBytes);
    ASSERT_TRUE(saved) << saved.error().ToString();
    taken = taken || *saved == opened.own_slot;
    ASSERT_TRUE(trainer->AwaitNotice(NoticeKind::kCommitted, step, Tier::kDisk));
  }
  EXPECT_TRUE(taken);
}

/// The coordinator may have asked before the rank had joined, or not at all.
TEST_F(ViewTest, ItsOwnShardIsCheckedWhenTheViewIsAskedFor) {
  ASSERT_NO_FATAL_FAILURE(TrainAndLeave(1));
  auto trainer = NextRun({.run_id = "run-2"});
  UniqueFd fd;
  const ReplyMessage opened = Open(*trainer, &fd);
  ASSERT_EQ(opened.code, 0U) << GetText(opened.text);
  ASSERT_LT(opened.own_slot, trainer->welcome().slots);
  const auto image = MakeImage(Shard(1), kTensorBytes);
  EXPECT_TRUE(std::equal(image.begin(), image.end(), trainer->slot(opened.own_slot).begin()));
}

TEST_F(ViewTest, BadRequestsAreRefusedAndHarmNothing) {
  ASSERT_NO_FATAL_FAILURE(TrainAndLeave(1));
  auto trainer = NextRun({.run_id = "run-2"});
  UniqueFd fd;
  const ReplyMessage opened = Open(*trainer, &fd);
  ASSERT_EQ(opened.code, 0U);
  const Mapped memory(std::move(fd));
  const auto refused = [&](auto change) {
    ReadViewMessage read;
    read.view = opened.slot;
    read.bytes = 1 << 20;
    change(read);
    return Read(*trainer, read).code();
  };
  constexpr auto kBad = ErrorCode::kInvalidArgument;
  EXPECT_EQ(refused([](ReadViewMessage& m) { m.view += 1; }), ErrorCode::kNotFound);
  EXPECT_EQ(refused([](ReadViewMessage& m) { m.rank = 1; }), kBad);
  EXPECT_EQ(refused([](ReadViewMessage& m) { m.rank = ~0U; }), kBad);
  EXPECT_EQ(refused([](ReadViewMessage& m) { m.place = kViewPlaces; }), kBad);
  EXPECT_EQ(refused([](ReadViewMessage& m) { m.bytes = 0; }), kBad);
  EXPECT_EQ(refused([](ReadViewMessage& m) { m.bytes = kViewPlaceBytes + 1; }), kBad);
  EXPECT_EQ(refused([](ReadViewMessage& m) { m.bytes -= 1; }), kBad);
  EXPECT_EQ(refused([](ReadViewMessage& m) { m.offset = 1; }), kBad);
  EXPECT_EQ(refused([](ReadViewMessage& m) { m.offset = 1ULL << 62; }), kBad);
  EXPECT_EQ(refused([](ReadViewMessage& m) { m.offset = 0 - (1ULL << 20); }), kBad);
  ExpectImage(*trainer, opened.slot, memory, 1);
  // Each view has memory: there are only so many, until one is closed.
  UniqueFd other;
  for (uint32_t i = 1; i < kViewsMax; ++i) EXPECT_EQ(Open(*trainer, &other).code, 0U);
  EXPECT_EQ(Open(*trainer, &other).code, static_cast<uint32_t>(ErrorCode::kResourceExhausted));
  CloseViewMessage close;
  close.view = opened.slot;
  ASSERT_TRUE(trainer->SendRaw(close).ok());
  EXPECT_EQ(Open(*trainer, &other).code, 0U);
  EXPECT_EQ(refused([](ReadViewMessage&) {}), ErrorCode::kNotFound);
}

/// What is saved is in memory alone.
class MemoryOnlyTest : public ViewTest {
 protected:
  MemoryOnlyTest() : ViewTest({.disk_every_steps = 1'000'000}) {}
};

TEST_F(MemoryOnlyTest, SmallerMemoryIsSetAsideForWhatItHoldsAndGivenBack) {
  {
    auto trainer = TestTrainer::Connect(node_.socket(), {});
    ASSERT_TRUE(trainer) << trainer.error().ToString();
    ASSERT_TRUE(trainer->Save(1, kTensorBytes));
    ASSERT_TRUE(trainer->AwaitNotice(NoticeKind::kCommitted, 1, Tier::kMemory));
  }
  node_.coordinator.SetDecision(RestoreDecision{Shard(1).version, Tier::kMemory, 1});
  auto trainer = NextRun({.run_id = "run-2", .slot_bytes = 12 << 20});
  ASSERT_NE(trainer, nullptr);
  EXPECT_EQ(trainer->welcome().slot_bytes, 12U << 20);
  UniqueFd fd;
  const ReplyMessage opened = Open(*trainer, &fd);
  ASSERT_EQ(opened.code, 0U) << GetText(opened.text);
  const Mapped memory(std::move(fd));
  ASSERT_NO_FATAL_FAILURE(ExpectImage(*trainer, opened.slot, memory, 1));
  EXPECT_EQ(node_.arena->usage().segments, 2U);

  // Also after a restart, and for a rank that gets its own shard back.
  node_.Stop();
  ASSERT_TRUE(node_.Start().ok());
  EXPECT_EQ(node_.arena->usage().segments, 2U);
  EXPECT_TRUE(Eventually([&] { return node_.coordinator.Holds(Shard(1).key(), Tier::kMemory); }));
  trainer = NextRun({.run_id = "run-2", .slot_bytes = 12 << 20});
  ASSERT_NE(trainer, nullptr);
  PrepareShard prepare;
  prepare.identity = Shard(1);
  prepare.source_node = "node-0";
  const uint64_t request = node_.coordinator.Prepare(prepare);
  ASSERT_TRUE(Eventually([&] { return node_.coordinator.prepared(request).has_value(); }));
  EXPECT_TRUE(node_.coordinator.prepared(request)->ok());
  auto found = trainer->FindRestore();
  ASSERT_TRUE(found);
  ASSERT_EQ(found->code, 0U) << GetText(found->text);
  const auto image = MakeImage(Shard(1), kTensorBytes);
  EXPECT_TRUE(std::equal(image.begin(), image.end(), trainer->slot(found->slot).begin()));
  EXPECT_TRUE(trainer->EndSave(found->slot, 1, MessageType::kEndRestore).ok());

  // A newer version is safe: nobody needs the smaller memory any more.
  ASSERT_TRUE(trainer->Save(2, kTensorBytes));
  ASSERT_TRUE(trainer->AwaitNotice(NoticeKind::kCommitted, 2, Tier::kMemory));
  EXPECT_TRUE(Eventually([&] { return node_.arena->usage().segments == 1; }));
}

}  // namespace
}  // namespace holdfast::agent
