// A commit is on the device before Commit returns: RocksDB's log is synced. The test replaces the
// functions with which RocksDB syncs files by functions that count the calls.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>

#include "coordinator/store/rocks_store.h"

namespace {
std::atomic<int> g_syncs{0};
std::atomic<bool> g_fails{false};
}  // namespace

extern "C" int fsync(int fd) {
  ++g_syncs;
  return static_cast<int>(::syscall(SYS_fsync, fd));
}
extern "C" int fdatasync(int fd) {
  ++g_syncs;
  if (g_fails) {
    errno = EIO;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_fdatasync, fd));
}

namespace holdfast::coord {
namespace {

TEST(RocksStoreSync, EveryCommitIsSyncedBeforeItIsAnswered) {
  std::string dir = (std::filesystem::temp_directory_path() / "store-XXXXXX").string();
  ASSERT_NE(::mkdtemp(dir.data()), nullptr);
  {
    auto store = RocksStore::Open(dir + "/meta");
    ASSERT_TRUE(store) << store.error().ToString();
    for (int i = 0; i < 5; ++i) {
      const int before = g_syncs;
      const Mutation mutation{"key" + std::to_string(i), "value"};
      ASSERT_TRUE((*store)->Commit({}, {&mutation, 1}).value_or(false));
      EXPECT_GT(g_syncs, before) << "commit " << i;
    }
  }
  std::filesystem::remove_all(dir);
}

TEST(RocksStoreSync, AStoreThatCouldNotSyncIsNotWrittenAgain) {
  std::string dir = (std::filesystem::temp_directory_path() / "store-XXXXXX").string();
  ASSERT_NE(::mkdtemp(dir.data()), nullptr);
  {
    auto store = RocksStore::Open(dir + "/meta");
    ASSERT_TRUE(store) << store.error().ToString();
    const Mutation mutation{"key", "value"};
    g_fails = true;
    EXPECT_FALSE((*store)->Commit({}, {&mutation, 1})) << "the outcome is unknown";
    g_fails = false;
    auto again = (*store)->Commit({}, {&mutation, 1});
    ASSERT_FALSE(again);
    EXPECT_THAT(again.error().message(), ::testing::HasSubstr("an earlier write failed"));
  }
  std::filesystem::remove_all(dir);
}

}  // namespace
}  // namespace holdfast::coord
