// Data that has changed since it was sealed is neither served to peers nor reported as stored.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "agent/arena/segment.h"
#include "agent/pipeline/restore.h"
#include "storage/format/checksum.h"
#include "storage/volume/aligned_buffer.h"
#include "tests/agent/pipeline/harness.h"

namespace holdfast::agent {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kTensorBytes = 2'500'000;  // three chunks, the last partial

#define ASSERT_OK(expr)                                  \
  do {                                                   \
    const auto& ok_status = (expr);                      \
    ASSERT_TRUE(ok_status.ok()) << ok_status.ToString(); \
  } while (false)

void FlipByte(const std::string& path, uint64_t offset) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(static_cast<std::streamoff>(offset));
  const auto byte = static_cast<char>(file.get() ^ 0x10);
  file.seekp(static_cast<std::streamoff>(offset));
  file.put(byte);
  ASSERT_TRUE(file.flush()) << path;
}

std::string ImageFile(const TestNode& node) {
  for (const std::string& path : node.DataFiles()) {
    if (path.ends_with(".safetensors")) return path;
  }
  return "";
}

/// A node with version 1-1 of its only rank, committed in memory and on disk.
class DecayTest : public ::testing::Test {
 protected:
  void Start(const TestNodeOptions& options = {}) {
    node_ = std::make_unique<TestNode>(options);
    ASSERT_OK(node_->Start());
    auto trainer = TestTrainer::Connect(node_->socket(), {});
    ASSERT_TRUE(trainer) << trainer.error().ToString();
    trainer_.emplace(*std::move(trainer));
  }
  void SaveFirst() {
    auto slot = trainer_->Save(1, kTensorBytes);
    ASSERT_TRUE(slot) << slot.error().ToString();
    slot_ = *slot;
    ASSERT_TRUE(trainer_->AwaitNotice(NoticeKind::kCommitted, 1, Tier::kDisk));
  }

  std::unique_ptr<TestNode> node_;
  std::optional<TestTrainer> trainer_;
  uint32_t slot_ = 0;
};

// ---- served to peers ----

TEST_F(DecayTest, ASlotThatDecayedIsNotServedToPeers) {
  Start();
  SaveFirst();
  const std::vector<std::byte> image = MakeImage(trainer_->Identity(1), kTensorBytes);
  PeerRequest request;
  request.kind = PeerRequestKind::kShard;
  request.job = "job";
  request.version = trainer_->Version(1);
  request.incarnation = trainer_->incarnation();
  request.rank = Rank{0};
  request.bytes = image.size();
  const auto read_all = [&]() -> Result<std::vector<std::byte>> {
    HOLDFAST_ASSIGN_OR_RETURN(auto reader, node_->node->peer_source().Open(request));
    std::vector<std::byte> all;
    while (all.size() < image.size()) {
      HOLDFAST_ASSIGN_OR_RETURN(
          const auto unit,
          reader->Read(all.size(), std::min<uint64_t>(kPeerUnitBytes, image.size() - all.size()),
                       Clock::Real().Now() + std::chrono::seconds(20)));
      if (unit.empty()) return Fail(InternalError("the image ended early"));
      all.insert(all.end(), unit.begin(), unit.end());
    }
    return all;
  };
  const auto good = read_all();
  ASSERT_TRUE(good) << good.error().ToString();
  EXPECT_TRUE(*good == image);
  // A stray write of the trainer, in the last chunk.
  trainer_->slot(slot_)[image.size() - 1] ^= std::byte{0x10};
  const auto bad = read_all();
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().code(), ErrorCode::kDataLoss);
  EXPECT_THAT(bad.error().message(), HasSubstr("chunk 2"));
  EXPECT_TRUE(
      Eventually([&] { return node_->coordinator.WasRemoved(trainer_->Key(1), Tier::kMemory); }));
}

TEST_F(DecayTest, APeerOfAnOlderIncarnationIsNotServed) {
  Start();
  SaveFirst();
  PeerRequest request;
  request.kind = PeerRequestKind::kShard;
  request.job = "job";
  request.version = trainer_->Version(1);
  request.incarnation = trainer_->incarnation();
  request.rank = Rank{0};
  EXPECT_TRUE(node_->node->peer_source().Open(request));
  trainer_->HangUp();
  ASSERT_TRUE(TestTrainer::Connect(node_->socket(), {.run_id = "run-2"}));
  node_->coordinator.Broadcast("job");
  ASSERT_TRUE(Eventually([&] { return !node_->node->peer_source().Open(request); }));
  EXPECT_EQ(node_->node->peer_source().Open(request).error().code(), ErrorCode::kFenced);
  request.incarnation.value += 1;
  EXPECT_TRUE(node_->node->peer_source().Open(request));
}

// ---- the scrubber ----

class ScrubTest : public DecayTest {
 protected:
  static TestNodeOptions Scrubbing() {
    TestNodeOptions options;
    options.scrub = {.bytes_per_s = 1ULL << 30, .pause_ms = 1};
    return options;
  }
};

TEST_F(ScrubTest, EveryChunkInMemoryIsScrubbedIncludingTheLast) {
  Start(Scrubbing());
  SaveFirst();
  const uint64_t image_bytes = MakeImage(trainer_->Identity(1), kTensorBytes).size();
  trainer_->slot(slot_)[image_bytes - 1] ^= std::byte{0x10};
  EXPECT_TRUE(
      Eventually([&] { return node_->coordinator.WasRemoved(trainer_->Key(1), Tier::kMemory); }));
  EXPECT_TRUE(node_->coordinator.Holds(trainer_->Key(1), Tier::kDisk));
}

TEST_F(ScrubTest, EveryChunkOnDiskIsScrubbedIncludingTheLast) {
  Start(Scrubbing());
  SaveFirst();
  const std::string path = ImageFile(*node_);
  FlipByte(path, std::filesystem::file_size(path) - 1);
  EXPECT_TRUE(
      Eventually([&] { return node_->coordinator.WasRemoved(trainer_->Key(1), Tier::kDisk); }));
  EXPECT_TRUE(node_->coordinator.Holds(trainer_->Key(1), Tier::kMemory));
}

// ---- what is already on disk ----

TEST_F(DecayTest, OtherBytesOnDiskAreNotReportedAsStored) {
  Start();
  const ShardIdentity identity = trainer_->Identity(1);
  const std::vector<std::byte> other = MakeImage(identity, kTensorBytes + 64);
  auto memory = *AlignedBuffer::Allocate(other.size());
  std::copy(other.begin(), other.end(), memory.span().begin());
  ShardSeal seal;
  seal.identity = identity;
  seal.image_bytes = other.size();
  for (uint64_t at = 0; at < other.size(); at += kChunkBytes) {
    seal.chunk_crcs.push_back(
        Crc32c(std::span(other).subspan(at, std::min<uint64_t>(kChunkBytes, other.size() - at))));
  }
  {
    auto writer = node_->volume->CreateShard(identity, memory.span().first(other.size()));
    ASSERT_TRUE(writer) << writer.error().ToString();
    ASSERT_OK((*writer)->Publish(seal));
  }
  ASSERT_TRUE(trainer_->Save(1, kTensorBytes));
  auto failed = trainer_->AwaitNotice(NoticeKind::kFailed, 1, Tier::kDisk);
  ASSERT_TRUE(failed);
  EXPECT_EQ(ErrorFromNumber(failed->code), ErrorCode::kDataLoss);
  EXPECT_THAT(GetText(failed->text), HasSubstr("with other bytes than in memory"));
  EXPECT_FALSE(node_->coordinator.Holds(identity.key(), Tier::kDisk));
  EXPECT_TRUE(node_->coordinator.failed(identity.key(), Tier::kDisk).has_value());
  EXPECT_TRUE(trainer_->AwaitNotice(NoticeKind::kCommitted, 1, Tier::kMemory));
}

TEST_F(DecayTest, EqualBytesOnDiskAreReportedAsStored) {
  Start();
  const ShardIdentity identity = trainer_->Identity(1);
  const std::vector<std::byte> image = MakeImage(identity, kTensorBytes);
  auto memory = *AlignedBuffer::Allocate(image.size());
  std::copy(image.begin(), image.end(), memory.span().begin());
  ShardSeal seal;
  seal.identity = identity;
  seal.image_bytes = image.size();
  for (uint64_t at = 0; at < image.size(); at += kChunkBytes) {
    seal.chunk_crcs.push_back(
        Crc32c(std::span(image).subspan(at, std::min<uint64_t>(kChunkBytes, image.size() - at))));
  }
  {
    auto writer = node_->volume->CreateShard(identity, memory.span().first(image.size()));
    ASSERT_TRUE(writer);
    ASSERT_OK((*writer)->Publish(seal));
  }
  SaveFirst();
  EXPECT_TRUE(node_->coordinator.Holds(identity.key(), Tier::kDisk));
}

// ---- an idle job's memory ----

TEST(IdleMemory, AVersionThatIsNotOnDiskKeepsItsMemory) {
  constexpr uint64_t kLargeSlotBytes = 48 << 20;  // three of them are over half of the arena
  TestNode node({.simulated_disk = true});
  ASSERT_OK(node.Start());
  auto old_job = TestTrainer::Connect(node.socket(), {.slot_bytes = kLargeSlotBytes});
  ASSERT_TRUE(old_job) << old_job.error().ToString();
  ASSERT_TRUE(old_job->Save(1, kTensorBytes));
  ASSERT_TRUE(old_job->AwaitNotice(NoticeKind::kCommitted, 1, Tier::kDisk));
  node.disk.SetCapacity(node.disk.used_bytes());
  ASSERT_TRUE(old_job->Save(2, kTensorBytes));
  ASSERT_TRUE(old_job->AwaitNotice(NoticeKind::kFailed, 2, Tier::kDisk));
  old_job->HangUp();
  EXPECT_FALSE(Eventually(
      [&] {
        return TestTrainer::Connect(node.socket(), {.job = "new", .slot_bytes = kLargeSlotBytes})
            .has_value();
      },
      500));
  EXPECT_TRUE(node.coordinator.Holds(old_job->Key(2), Tier::kMemory));
}

// ---- large slots, which several threads verify ----

TEST(VerifySlot, EveryChunkOfALargeSlotIsChecked) {
  constexpr uint64_t kImageBytes = 259 * kChunkBytes + 17;  // two threads' shares and a tail
  auto segment = MappedSegment::Create({1, {"job", Rank{0}, 0}, 1, 260 * kChunkBytes});
  ASSERT_TRUE(segment) << segment.error().ToString();
  const VersionId version{Incarnation{1}, Step{1}};
  auto slot = (*segment)->Lease(version, 1, kImageBytes);
  ASSERT_TRUE(slot);
  const std::span<std::byte> image = (*segment)->slot(*slot).first(kImageBytes);
  ShardSeal seal;
  seal.identity = {"job", version, Rank{0}, 1};
  seal.image_bytes = kImageBytes;
  seal.chunk_crcs.assign(259, Crc32c(image.first(kChunkBytes)));
  seal.chunk_crcs.push_back(Crc32c(image.last(17)));
  ASSERT_OK((*segment)->Seal(*slot, seal));
  ASSERT_OK(VerifySlot(**segment, *slot));
  for (uint64_t chunk : {0, 127, 128, 255, 256, 258, 259}) {
    std::byte& byte = image[chunk * kChunkBytes + 5];
    byte ^= std::byte{1};
    const Status status = VerifySlot(**segment, *slot);
    EXPECT_EQ(status.code(), ErrorCode::kDataLoss) << chunk;
    EXPECT_THAT(status.message(), HasSubstr("chunk " + std::to_string(chunk) + " "));
    byte ^= std::byte{1};
  }
}

}  // namespace
}  // namespace holdfast::agent
