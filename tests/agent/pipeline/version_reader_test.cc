#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "agent/api/version_listing.h"
#include "storage/format/checksum.h"
#include "storage/format/image.h"
#include "storage/format/version_index.h"
#include "tests/agent/pipeline/harness.h"

// Version readers of a later start's trainers, and the retained segments that they read.

namespace holdfast::agent {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kTensorBytes = 3'300'000;

/// The memory of a version reader, as its trainer maps it.
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
    return {base_ + index * kReadPlaceBytes, kReadPlaceBytes};
  }
  std::span<const std::byte> listing(uint64_t bytes) const {
    return std::span<const std::byte>(base_, bytes_).subspan(kReadWindowBytes, bytes);
  }

 private:
  UniqueFd fd_;
  std::byte* base_ = nullptr;
  size_t bytes_ = 0;
};

class VersionReaderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Status started = node_.Start();
    ASSERT_TRUE(started.ok()) << started.ToString();
  }
  explicit VersionReaderTest(const TestNodeOptions& options = {}) : node_(options) {}
  /// Runs a trainer that saves steps 1..last, all durable, and leaves.
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
    auto opened = trainer.OpenReader(memory);
    EXPECT_TRUE(opened) << opened.error().ToString();
    return opened.value_or(ReplyMessage{});
  }
  Status Read(TestTrainer& trainer, const ReadRangeMessage& message) {
    auto reply = trainer.ReadRange(message);
    if (!reply) return reply.error();
    return Status(ErrorFromNumber(reply->code), GetText(reply->text));
  }
  /// Reads the complete image through a place and compares it.
  void ExpectImage(TestTrainer& trainer, uint32_t reader, const Mapped& memory, uint64_t step) {
    const std::vector<std::byte> image = MakeImage(Shard(step), kTensorBytes);
    ReadRangeMessage read;
    read.reader = reader;
    read.bytes = image.size();
    read.place = 3;
    ASSERT_LE(read.bytes, kReadPlaceBytes);
    const Status status = Read(trainer, read);
    ASSERT_TRUE(status.ok()) << status.ToString();
    EXPECT_TRUE(std::equal(image.begin(), image.end(), memory.place(3).begin()));
  }

  TestNode node_;
};

TEST_F(VersionReaderTest, AnotherWorldListsAndReadsTheShard) {
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

TEST_F(VersionReaderTest, APlaceHasNoMemoryBeforeItIsReadInto) {
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
  EXPECT_LT(allocated(), kReadPlaceBytes);
  const Mapped memory(std::move(fd));
  ASSERT_NO_FATAL_FAILURE(ExpectImage(*trainer, opened.slot, memory, 2));
  EXPECT_GT(allocated(), kTensorBytes);
  EXPECT_LT(allocated(), 2 * kReadPlaceBytes);
}

TEST_F(VersionReaderTest, AShardDamagedInMemoryIsReadFromDisk) {
  ASSERT_NO_FATAL_FAILURE(TrainAndLeave(1));
  // The rank's trainer has its slots mapped and can damage them.
  auto trainer = NextRun({.run_id = "run-2"});
  for (uint32_t slot = 0; slot < trainer->welcome().slots; ++slot) {
    trainer->slot(slot)[2'000'000] ^= std::byte{1};
  }
  UniqueFd fd;
  const ReplyMessage opened = Open(*trainer, &fd);
  ASSERT_EQ(opened.code, 0U) << GetText(opened.text);
  EXPECT_EQ(opened.own_slot, kNoSlot) << "the slot is not verified";
  const Mapped memory(std::move(fd));
  ASSERT_NO_FATAL_FAILURE(ExpectImage(*trainer, opened.slot, memory, 1));
  EXPECT_TRUE(Eventually([&] {
    return node_.coordinator.WasRemoved(Shard(1).key(), Tier::kMemory);
  })) << "the damage was not reported";
}

TEST_F(VersionReaderTest, AVerifiedOwnShardIsReadInPlace) {
  ASSERT_NO_FATAL_FAILURE(TrainAndLeave(1));
  auto trainer = NextRun({.run_id = "run-2"});
  PrepareShard prepare;
  prepare.identity = Shard(1);
  prepare.source_node = "node-0";
  const uint64_t request = node_.coordinator.Prepare(prepare);
  UniqueFd fd;
  // Do not wait for the outcome: the reply to OpenReader waits for it.
  const ReplyMessage opened = Open(*trainer, &fd);
  ASSERT_EQ(opened.code, 0U) << GetText(opened.text);
  EXPECT_TRUE(node_.coordinator.prepared(request).has_value());
  ASSERT_LT(opened.own_slot, trainer->welcome().slots);
  const auto expect_intact = [&] {
    const auto image = MakeImage(Shard(1), kTensorBytes);
    EXPECT_TRUE(std::equal(image.begin(), image.end(), trainer->slot(opened.own_slot).begin()));
  };
  expect_intact();
  // While the reader is open, newer versions take the other slots.
  for (uint64_t step = 2; step <= 5; ++step) {
    const auto saved = trainer->Save(step, kTensorBytes);
    ASSERT_TRUE(saved) << saved.error().ToString();
    EXPECT_NE(*saved, opened.own_slot);
    ASSERT_TRUE(trainer->AwaitNotice(NoticeKind::kCommitted, step, Tier::kDisk));
  }
  expect_intact();
  CloseReaderMessage close;
  close.reader = opened.slot;
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

/// The coordinator may have directed the check before the rank joined, or not at all.
TEST_F(VersionReaderTest, TheOwnShardIsVerifiedWhenAReaderIsOpened) {
  ASSERT_NO_FATAL_FAILURE(TrainAndLeave(1));
  auto trainer = NextRun({.run_id = "run-2"});
  UniqueFd fd;
  const ReplyMessage opened = Open(*trainer, &fd);
  ASSERT_EQ(opened.code, 0U) << GetText(opened.text);
  ASSERT_LT(opened.own_slot, trainer->welcome().slots);
  const auto image = MakeImage(Shard(1), kTensorBytes);
  EXPECT_TRUE(std::equal(image.begin(), image.end(), trainer->slot(opened.own_slot).begin()));
}

/// A rank whose shard is in its memory needs no header of another rank, and no places either.
TEST_F(VersionReaderTest, ARankInTheSameWorldReadsOnlyItsOwnHeader) {
  ASSERT_NO_FATAL_FAILURE(TrainAndLeave(1));
  auto trainer = NextRun({.run_id = "run-2"});
  EXPECT_EQ(trainer->welcome().features & kOpensVersions, kOpensVersions);
  UniqueFd fd;
  const auto opened = trainer->OpenReader(&fd, MessageType::kOpenVersion);
  ASSERT_TRUE(opened) << opened.error().ToString();
  ASSERT_EQ(opened->code, 0U) << GetText(opened->text);
  EXPECT_EQ(opened->world, 1U);
  ASSERT_LT(opened->own_slot, trainer->welcome().slots);
  const auto image = MakeImage(Shard(1), kTensorBytes);
  EXPECT_EQ(opened->image_bytes, image.size());
  EXPECT_TRUE(std::equal(image.begin(), image.end(), trainer->slot(opened->own_slot).begin()));
  EXPECT_EQ(node_.coordinator.place_requests(), 0U);
}

/// Planning adds no read: the load takes the chunk that has the header. Here no source
/// has it any more.
TEST_F(VersionReaderTest, ALoadReadsNoChunkOfTheHeaderAgain) {
  ASSERT_NO_FATAL_FAILURE(TrainAndLeave(1));
  auto trainer = NextRun({.run_id = "run-2"});
  const auto damage = [&](size_t at) {
    for (uint32_t slot = 0; slot < trainer->welcome().slots; ++slot) {
      trainer->slot(slot)[at] ^= std::byte{1};
    }
  };
  damage(2'000'000);  // so that the slot is not verified
  UniqueFd fd;
  const auto opened = trainer->OpenReader(&fd, MessageType::kOpenVersion);
  ASSERT_TRUE(opened) << opened.error().ToString();
  ASSERT_EQ(opened->code, 0U) << GetText(opened->text);
  ASSERT_EQ(opened->own_slot, kNoSlot);
  const Mapped memory(std::move(fd));
  const auto image = MakeImage(Shard(1), kTensorBytes);
  ASSERT_EQ(image.size() / kChunkBytes, 3U);
  damage(100);
  // Removing the files would not do: sources may have them open.
  for (const std::string& file : node_.DataFiles()) {
    if (std::filesystem::file_size(file) < kTensorBytes) continue;
    std::fstream content(file, std::ios::in | std::ios::out | std::ios::binary);
    content.seekp(100).put('\xff');
    ASSERT_TRUE(content.flush().good()) << file;
  }
  ReadRangeMessage read;
  read.reader = opened->slot;
  read.bytes = kChunkBytes;
  const Status status = Read(*trainer, read);
  ASSERT_TRUE(status.ok()) << status.ToString();
  EXPECT_TRUE(std::equal(image.begin(), image.begin() + kChunkBytes, memory.place(0).begin()));
}

/// Rank 1 of 2 begins with the shard of rank 1 mod 1, and the index has all shards.
TEST_F(VersionReaderTest, AnotherWorldListsOneShardAndMapsTheIndex) {
  ASSERT_NO_FATAL_FAILURE(TrainAndLeave(2));
  auto trainer = NextRun({.run_id = "run-2", .rank = 1, .world = 2});
  UniqueFd fd;
  const auto opened = trainer->OpenReader(&fd, MessageType::kOpenVersion);
  ASSERT_TRUE(opened) << opened.error().ToString();
  ASSERT_EQ(opened->code, 0U) << GetText(opened->text);
  EXPECT_EQ(opened->own_slot, kNoSlot);
  const Mapped memory(std::move(fd));
  const auto listing = ParseListing(memory.listing(opened->image_bytes));
  ASSERT_TRUE(listing.has_value()) << listing.error().ToString();
  ASSERT_EQ(listing->size(), 1U);
  const auto image = ParseImage(listing->at(0).header, listing->at(0).image_bytes);
  ASSERT_TRUE(image.has_value()) << image.error().ToString();

  UniqueFd index_fd;
  const auto answer = trainer->ReadIndex(opened->slot, &index_fd);
  ASSERT_TRUE(answer) << answer.error().ToString();
  ASSERT_EQ(answer->code, 0U) << GetText(answer->text);
  // No process can change the memory that all trainers map.
  EXPECT_LT(::pwrite(index_fd.get(), "x", 1, 0), 0);
  EXPECT_EQ(::ftruncate(index_fd.get(), 0), -1);
  std::vector<uint64_t> bytes(answer->image_bytes / 8);
  ASSERT_EQ(::pread(index_fd.get(), bytes.data(), answer->image_bytes, 0),
            static_cast<ssize_t>(answer->image_bytes));
  const auto index = VersionIndex::Open(std::as_bytes(std::span(bytes)));
  ASSERT_TRUE(index.has_value()) << index.error().ToString();
  EXPECT_TRUE(index->Verify().ok());
  EXPECT_EQ(index->version(), Shard(2).version);
  EXPECT_EQ(index->world(), 1U);
  const auto shard = index->ShardOf(Rank{0});
  ASSERT_TRUE(shard.has_value()) << shard.error().ToString();
  EXPECT_EQ(shard->image_bytes, image->image_bytes);
  for (const PlacedTensor& tensor : image->tensors) {
    EXPECT_EQ(index->Find(tensor.spec.name)->uses.size(), 1U) << tensor.spec.name;
  }
  // After the index: the ranks whose shards are here.
  ASSERT_EQ(answer->world, 1U);
  uint32_t near = 7;
  ASSERT_EQ(::pread(index_fd.get(), &near, sizeof near, static_cast<off_t>(answer->image_bytes)),
            static_cast<ssize_t>(sizeof near));
  EXPECT_EQ(near, 0U);
  const auto missing = trainer->ReadIndex(opened->slot + 1, &index_fd);
  ASSERT_TRUE(missing);
  EXPECT_EQ(missing->code, static_cast<uint32_t>(ErrorCode::kNotFound));
}

TEST_F(VersionReaderTest, BadRequestsAreRefusedAndHarmNothing) {
  ASSERT_NO_FATAL_FAILURE(TrainAndLeave(1));
  auto trainer = NextRun({.run_id = "run-2"});
  UniqueFd fd;
  const ReplyMessage opened = Open(*trainer, &fd);
  ASSERT_EQ(opened.code, 0U);
  const Mapped memory(std::move(fd));
  const auto refused = [&](auto change) {
    ReadRangeMessage read;
    read.reader = opened.slot;
    read.bytes = 1 << 20;
    change(read);
    return Read(*trainer, read).code();
  };
  constexpr auto kBad = ErrorCode::kInvalidArgument;
  EXPECT_EQ(refused([](ReadRangeMessage& m) { m.reader += 1; }), ErrorCode::kNotFound);
  EXPECT_EQ(refused([](ReadRangeMessage& m) { m.rank = 1; }), kBad);
  EXPECT_EQ(refused([](ReadRangeMessage& m) { m.rank = ~0U; }), kBad);
  EXPECT_EQ(refused([](ReadRangeMessage& m) { m.place = kReadPlaces; }), kBad);
  EXPECT_EQ(refused([](ReadRangeMessage& m) { m.bytes = 0; }), kBad);
  EXPECT_EQ(refused([](ReadRangeMessage& m) { m.bytes = kReadPlaceBytes + 1; }), kBad);
  EXPECT_EQ(refused([](ReadRangeMessage& m) { m.bytes -= 1; }), kBad);
  EXPECT_EQ(refused([](ReadRangeMessage& m) { m.offset = 1; }), kBad);
  EXPECT_EQ(refused([](ReadRangeMessage& m) { m.offset = 1ULL << 62; }), kBad);
  EXPECT_EQ(refused([](ReadRangeMessage& m) { m.offset = 0 - (1ULL << 20); }), kBad);
  ExpectImage(*trainer, opened.slot, memory, 1);
  // Each version reader needs memory, so their number is limited. Another one opens once one is
  // closed.
  UniqueFd other;
  for (uint32_t i = 1; i < kReadersMax; ++i) EXPECT_EQ(Open(*trainer, &other).code, 0U);
  EXPECT_EQ(Open(*trainer, &other).code, static_cast<uint32_t>(ErrorCode::kResourceExhausted));
  CloseReaderMessage close;
  close.reader = opened.slot;
  ASSERT_TRUE(trainer->SendRaw(close).ok());
  EXPECT_EQ(Open(*trainer, &other).code, 0U);
  EXPECT_EQ(refused([](ReadRangeMessage&) {}), ErrorCode::kNotFound);
}

/// Versions are in memory only.
class MemoryOnlyTest : public VersionReaderTest {
 protected:
  MemoryOnlyTest() : VersionReaderTest({.disk_every_steps = 1'000'000}) {}
};

TEST_F(MemoryOnlyTest, ASmallerSegmentIsRetainedUntilANewerVersionIsSafe) {
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

  // The same after a restart, and for a rank that restores its own shard.
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

  // A newer version is safe: the retained segment is no longer needed.
  ASSERT_TRUE(trainer->Save(2, kTensorBytes));
  ASSERT_TRUE(trainer->AwaitNotice(NoticeKind::kCommitted, 2, Tier::kMemory));
  EXPECT_TRUE(Eventually([&] { return node_.arena->usage().segments == 1; }));
}

}  // namespace
}  // namespace holdfast::agent
