// Durable means that fsync was called once, after the bytes, and that its result is used. This
// program replaces fsync by a version that counts calls and fails on demand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>

#include "storage/io/block_file.h"

namespace {
std::atomic<int> g_syncs{0};
std::atomic<int> g_failures{0};  // of the next calls
}  // namespace

extern "C" int fsync(int fd) {
  ++g_syncs;
  if (g_failures > 0) {
    --g_failures;
    errno = EIO;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_fsync, fd));
}

namespace holdfast {
namespace {

class SyncTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "hf-sync-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    path_ = pattern;
    IoOptions options;
    options.io_uring = GetParam();
    auto dir = OpenDirectory(path_, options);
    ASSERT_TRUE(dir) << dir.error().ToString();
    dir_ = *std::move(dir);
    block_.reset(static_cast<std::byte*>(std::aligned_alloc(kBlockBytes, kBlockBytes)));
    std::memset(block_.get(), 0x5A, kBlockBytes);
  }
  void TearDown() override {
    g_failures = 0;
    dir_.reset();
    std::filesystem::remove_all(path_);
  }
  std::span<const std::byte> block() const { return {block_.get(), kBlockBytes}; }
  /// Creates a file of one block.
  std::unique_ptr<BlockFile> Written(const std::string& name) {
    auto file = dir_->OpenFile(name, OpenMode::kCreateExclusive);
    EXPECT_TRUE(file);
    EXPECT_TRUE((*file)->QueueWrite(0, block()).ok());
    EXPECT_TRUE((*file)->Drain().ok());
    return *std::move(file);
  }

  std::string path_;
  std::unique_ptr<Directory> dir_;
  std::unique_ptr<std::byte, void (*)(void*)> block_{nullptr, &::free};
};

TEST_P(SyncTest, AFailedSyncIsFinalAndNeverRepeated) {
  auto file = Written("a");
  g_failures = 1;
  const int before = g_syncs;
  const Status first = file->Sync();
  EXPECT_EQ(first.code(), ErrorCode::kIoError);
  // The kernel drops the error with the pages that it could not write: a second call would succeed.
  EXPECT_EQ(file->Sync(), first);
  EXPECT_EQ(file->Sync(), first);
  EXPECT_EQ(g_syncs, before + 1);
  EXPECT_EQ(file->QueueWrite(0, block()), first);
}

TEST_P(SyncTest, ASyncReachesTheDevice) {
  auto file = Written("a");
  const int before = g_syncs;
  EXPECT_TRUE(file->Sync().ok());
  EXPECT_EQ(g_syncs, before + 1);
  EXPECT_TRUE(dir_->SyncDirectory(".").ok());
  EXPECT_EQ(g_syncs, before + 2);
  EXPECT_TRUE(dir_->WriteSmallFile("small", "text").ok());
  EXPECT_EQ(g_syncs, before + 3);
}

TEST_P(SyncTest, ASmallFileIsRemovedWhenItsSyncFails) {
  g_failures = 1;
  EXPECT_EQ(dir_->WriteSmallFile("small", "text").code(), ErrorCode::kIoError);
  EXPECT_FALSE(std::filesystem::exists(path_ + "/small"));
}

TEST_P(SyncTest, AnOverwriteIsSynced) {
  ASSERT_TRUE(Written("a")->Sync().ok());
  const int before = g_syncs;
  EXPECT_TRUE(dir_->Overwrite("a", 100, block().first(50)).ok());
  EXPECT_EQ(g_syncs, before + 1);
  g_failures = 1;
  EXPECT_EQ(dir_->Overwrite("a", 100, block().first(50)).code(), ErrorCode::kIoError);
}

INSTANTIATE_TEST_SUITE_P(Directories, SyncTest, ::testing::Bool(),
                         [](const auto& tested) { return tested.param ? "Uring" : "Posix"; });

}  // namespace
}  // namespace holdfast
