#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "storage/format/checksum.h"
#include "storage/format/image.h"
#include "storage/volume/aligned_buffer.h"
#include "storage/volume/volume.h"
#include "testing/disk/sim_directory.h"

namespace holdfast {

#define ASSERT_STATUS_OK(expr)                       \
  do {                                               \
    const Status status_ = (expr);                   \
    ASSERT_TRUE(status_.ok()) << status_.ToString(); \
  } while (false)
#define EXPECT_STATUS_OK(expr)                       \
  do {                                               \
    const Status status_ = (expr);                   \
    EXPECT_TRUE(status_.ok()) << status_.ToString(); \
  } while (false)

template <typename T>
Status StatusOf(const Result<T>& result) {
  return result ? Status::Ok() : result.error();
}

inline ShardIdentity Shard(uint64_t incarnation, uint64_t step, uint32_t rank,
                           const std::string& job = "job") {
  return {job, VersionId{Incarnation{incarnation}, Step{step}}, Rank{rank}, 8};
}

/// Returns a byte of a shard's tensors, which depends only on its identity: the oracle for reads.
inline std::byte ExpectedByte(const ShardIdentity& identity, uint64_t offset) {
  uint64_t x = identity.version.incarnation.value * 1000003 + identity.version.step.value * 7919 +
               identity.rank.value * 104729 + offset / 8;
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdULL;
  x ^= x >> 29;
  return static_cast<std::byte>(x >> (offset % 8 * 8));
}

/// A slot with an image of `data_bytes` of tensors. The bytes after the image are 0xEE.
struct TestImage {
  ShardIdentity identity;
  AlignedBuffer slot;
  std::span<std::byte> image;

  TestImage(const ShardIdentity& id, uint64_t data_bytes) : identity(id) {
    uint64_t rows = data_bytes / 64;
    std::vector<TensorSpec> tensors;
    auto add = [&](const std::string& name, DType dtype, std::vector<uint64_t> shape) {
      std::vector<uint64_t> offset(shape.size(), 0);
      tensors.push_back({name, dtype, shape, shape, offset});
    };
    if (rows > 0) add("weights", DType::kF32, {rows, 16});
    if (data_bytes % 64 > 0) add("rest", DType::kU8, {data_bytes % 64});
    auto layout = ImageLayout::Plan(tensors);
    EXPECT_TRUE(layout) << StatusOf(layout).ToString();
    auto rendered = layout->RenderHeader(identity, {});
    EXPECT_TRUE(rendered) << StatusOf(rendered).ToString();
    const std::vector<char> header(rendered->begin(), rendered->end());
    uint64_t image_bytes = header.size() + data_bytes;
    slot = *AlignedBuffer::Allocate(image_bytes);
    image = slot.span().first(image_bytes);
    std::memset(slot.data(), 0xEE, slot.size());
    std::memcpy(image.data(), header.data(), header.size());
    for (uint64_t i = 0; i < data_bytes; ++i) {
      image[header.size() + i] = ExpectedByte(identity, i);
    }
  }

  ShardSeal Seal() const {
    ShardSeal seal;
    seal.identity = identity;
    seal.image_bytes = image.size();
    for (uint64_t at = 0; at < image.size(); at += kChunkBytes) {
      seal.chunk_crcs.push_back(
          Crc32c(image.subspan(at, std::min<uint64_t>(kChunkBytes, image.size() - at))));
    }
    seal.wall_nanos = 1'700'000'000'000'000'000;
    return seal;
  }
};

inline Status WriteShard(Volume& volume, const TestImage& image) {
  auto writer = volume.CreateShard(image.identity, image.image);
  if (!writer) return writer.error();
  return (*writer)->Publish(image.Seal());
}

/// Reads all chunks, the last one first. Returns how many of them are reported as corrupt.
inline uint64_t BadChunks(const Volume& volume, const TestImage& expected) {
  auto chunks = volume.OpenChunks(expected.identity.key());
  EXPECT_TRUE(chunks) << StatusOf(chunks).ToString();
  if (!chunks) return 0;
  uint64_t bad = 0;
  for (uint64_t i = (*chunks)->seal().chunk_crcs.size(); i-- > 0;) {
    auto chunk = (*chunks)->Read(i);
    if (!chunk) {
      EXPECT_EQ(chunk.error().code(), ErrorCode::kDataLoss);
      ++bad;
      continue;
    }
    const auto right = std::span<const std::byte>(expected.image).subspan(i * kChunkBytes);
    EXPECT_EQ(chunk->size(), std::min<uint64_t>(right.size(), kChunkBytes));
    EXPECT_EQ(std::memcmp(chunk->data(), right.data(), chunk->size()), 0) << "chunk " << i;
  }
  return bad;
}

/// Reads the shard and compares every byte with a newly generated image of `data_bytes`.
inline void ExpectBitExact(const Volume& volume, const ShardIdentity& identity,
                           uint64_t data_bytes) {
  SCOPED_TRACE(ToString(identity.key()));
  TestImage expected(identity, data_bytes);
  auto into = *AlignedBuffer::Allocate(expected.image.size());
  uint64_t progress = 0;
  auto seal = volume.ReadShard(identity.key(), into.span().first(expected.image.size()),
                               [&](uint64_t bytes) {
                                 EXPECT_GE(bytes, progress);
                                 progress = bytes;
                               });
  ASSERT_TRUE(seal) << StatusOf(seal).ToString();
  EXPECT_EQ(seal->identity, identity);
  EXPECT_EQ(seal->image_bytes, expected.image.size());
  EXPECT_EQ(progress, expected.image.size());
  ASSERT_EQ(std::memcmp(into.data(), expected.image.data(), expected.image.size()), 0);
  EXPECT_EQ(BadChunks(volume, expected), 0);
  EXPECT_STATUS_OK(volume.VerifyShard(identity.key(), false));
  EXPECT_STATUS_OK(volume.VerifyShard(identity.key(), true));
}

inline VolumeOptions TestOptions(const std::string& cluster = "test") {
  VolumeOptions options;
  options.cluster = cluster;
  options.node = "n0";
  return options;
}

/// Opens `count` directories of a simulated disk: d0, d1, …
inline std::vector<std::unique_ptr<Directory>> SimDirectories(SimDisk& disk, uint32_t count) {
  std::vector<std::unique_ptr<Directory>> dirs;
  for (uint32_t i = 0; i < count; ++i) dirs.push_back(disk.Open("d" + std::to_string(i)));
  return dirs;
}
inline Result<std::unique_ptr<Volume>> OpenSim(SimDisk& disk, uint32_t count,
                                               const VolumeOptions& options = TestOptions()) {
  return Volume::Open(SimDirectories(disk, count), options, Clock::Real());
}

/// A folder on the real file system; the destructor removes it with its contents.
class TempFolder {
 public:
  TempFolder() {
    const char* base = ::getenv("TMPDIR");
    std::string path = std::string(base != nullptr ? base : "/tmp") + "/hf-volume-XXXXXX";
    EXPECT_NE(::mkdtemp(path.data()), nullptr);
    path_ = path;
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::string& path() const { return path_; }
  std::string Dir(uint32_t index) const { return path_ + "/d" + std::to_string(index); }
  std::vector<std::string> Dirs(uint32_t count) const {
    std::vector<std::string> dirs;
    for (uint32_t i = 0; i < count; ++i) dirs.push_back(Dir(i));
    return dirs;
  }

 private:
  std::string path_;
};

inline Result<std::unique_ptr<Volume>> OpenReal(const std::vector<std::string>& paths,
                                                const VolumeOptions& options = TestOptions()) {
  std::vector<std::unique_ptr<Directory>> dirs;
  for (const std::string& path : paths) {
    HOLDFAST_ASSIGN_OR_RETURN(auto dir, OpenDirectory(path, options.io));
    dirs.push_back(std::move(dir));
  }
  return Volume::Open(std::move(dirs), options, Clock::Real());
}

inline std::string ReadWhole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}
inline void WriteWhole(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << bytes;
  ASSERT_TRUE(file.flush()) << path;
}
inline void FlipBit(const std::string& path, uint64_t offset) {
  std::string bytes = ReadWhole(path);
  ASSERT_LT(offset, bytes.size());
  bytes[offset] = static_cast<char>(bytes[offset] ^ 0x10);
  WriteWhole(path, bytes);
}

/// Returns the relative paths of all regular files beneath `folder`, in order.
inline std::vector<std::string> FilesBeneath(const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) {
      files.push_back(std::filesystem::relative(entry.path(), folder).string());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace holdfast
