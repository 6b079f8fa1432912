// A commit that has been answered is on the device: RocksDB's log is synced before Commit returns. The
// functions with which RocksDB syncs files are replaced by ones that count.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>

#include "coordinator/store/rocks_store.h"

namespace {
std::atomic<int> g_syncs{0};
}  // namespace

extern "C" int fsync(int fd) {
  ++g_syncs;
  return static_cast<int>(::syscall(SYS_fsync, fd));
}
extern "C" int fdatasync(int fd) {
  ++g_syncs;
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

}  // namespace
}  // namespace holdfast::coord
