#include "storage/volume/part_reader.h"

#include <gtest/gtest.h>

#include <vector>

#include "storage/format/checksum.h"

namespace holdfast {
namespace {
constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kUnit = 4 * kMiB;

struct Operation {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

/// Completes each read when it is waited for, and records the reads.
class RecordingFile final : public BlockFile {
 public:
  RecordingFile(uint64_t bytes, std::vector<Operation>& reads) : bytes_(bytes), reads_(reads) {}
  Status QueueRead(uint64_t offset, std::span<std::byte> into) override {
    EXPECT_EQ(offset, queued_);
    reads_.push_back({offset, into.size()});
    queued_ = offset + into.size();
    return Status::Ok();
  }
  Status QueueWrite(uint64_t, std::span<const std::byte>) override { return InternalError("read"); }
  uint64_t CompletedPrefix() const override { return queued_; }
  Status WaitPrefix(uint64_t bytes) override {
    return bytes <= queued_ ? Status::Ok() : InternalError("these bytes are not queued");
  }
  Status Drain() override { return Status::Ok(); }
  Status Allocate(uint64_t) override { return Status::Ok(); }
  Status Truncate(uint64_t) override { return Status::Ok(); }
  Result<uint64_t> Size() const override { return bytes_; }
  Status Sync() override { return Status::Ok(); }

 private:
  const uint64_t bytes_;
  uint64_t queued_ = 0;
  std::vector<Operation>& reads_;
};

/// Reads an image of one part. Checks that nothing overwrites bytes of a ring that are not done.
std::vector<Operation> ReadsOf(uint64_t bytes, uint64_t ring_bytes, const ReadPace& pace) {
  std::vector<Operation> reads;
  SealPart part;
  part.image_end = part.file_bytes = bytes;
  PartReader reader("file", part, bytes, std::make_unique<RecordingFile>(bytes, reads));
  std::vector<std::byte> memory(ring_bytes);
  uint64_t done = 0;
  const Status read = reader.Read({memory.data(), ring_bytes}, pace, [&](uint64_t end) {
    const uint64_t queued = reads.back().offset + reads.back().bytes;
    EXPECT_LE(queued, done + std::min(ring_bytes, pace.ahead_bytes)) << "of " << end;
    EXPECT_GE(queued, end);
    done = end;
    return Status::Ok();
  });
  EXPECT_TRUE(read.ok()) << read.ToString();
  EXPECT_EQ(done, bytes);
  return reads;
}

void ExpectUnits(const std::vector<Operation>& reads, uint64_t bytes, uint64_t unit) {
  ASSERT_EQ(reads.size(), (bytes + unit - 1) / unit);
  for (size_t i = 0; i + 1 < reads.size(); ++i) EXPECT_EQ(reads[i].bytes, unit) << "read " << i;
}

TEST(PartReader, ReadsCompleteUnitsAfterTheFirstOnesToo) {
  const uint64_t bytes = 100 * kMiB + 12345;
  ExpectUnits(ReadsOf(bytes, 101 * kMiB, {kUnit, 4 * kUnit}), bytes, kUnit);
}

TEST(PartReader, ReadsCompleteUnitsIntoARing) {
  const uint64_t bytes = 50 * kMiB + 1;
  ExpectUnits(ReadsOf(bytes, 16 * kMiB, {kUnit, 16 * kUnit}), bytes, kUnit);
}

TEST(PartReader, UnitsMayBeLargerThanTheRingAndSmallerThanAChunk) {
  EXPECT_EQ(ReadsOf(3 * kMiB - 5, 3 * kMiB, {kUnit, 4 * kUnit}).size(), 1U);
  EXPECT_GE(ReadsOf(9 * kMiB, 2 * kMiB, {kUnit, kUnit}).size(), 5U);
  ExpectUnits(ReadsOf(9 * kMiB, 9 * kMiB, {kMiB / 4, 2 * kMiB}), 9 * kMiB, kMiB / 4);
}

}  // namespace
}  // namespace holdfast
