#include "coordinator/store/backup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "coordinator/store/catalog.h"
#include "coordinator/store/rocks_store.h"

// The procedure of docs/backup.md: copies a store that is in use, and starts a coordinator with the
// copy.

namespace holdfast::coord {
namespace {
namespace fs = std::filesystem;

class BackupTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "backup-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override { fs::remove_all(root_); }

  std::unique_ptr<Catalog> Open(const std::string& dir) {
    auto store = RocksStore::Open(root_ + dir);
    EXPECT_TRUE(store) << store.error().ToString();
    auto catalog = Catalog::Open(*std::move(store), "prod");
    EXPECT_TRUE(catalog) << catalog.error().ToString();
    return *std::move(catalog);
  }
  static Status PutJobCalled(Catalog& catalog, const std::string& name) {
    JobRecord record;
    record.job = name;
    record.uid = 7;
    record.incarnation = Incarnation{3};
    const std::vector<Effect> effects = {PutJob{record}};
    return catalog.Write(effects);
  }

  std::string root_;
};

TEST_F(BackupTest, ACopyOfARunningStoreReplacesIt) {
  auto running = Open("/store");
  ASSERT_TRUE(PutJobCalled(*running, "before").ok());
  auto counts = BackUpStore(root_ + "/store", root_ + "/backup/metadata");
  ASSERT_TRUE(counts) << counts.error().ToString();
  EXPECT_EQ(counts->records, 4U);  // the cluster, the epoch, the life, the job
  // The store stays in use after the copy, and is lost later.
  ASSERT_TRUE(PutJobCalled(*running, "after").ok());
  const Epoch seen = running->epoch();
  const LifeId life = running->life();
  running.reset();
  fs::remove_all(root_ + "/store");
  fs::copy(root_ + "/backup/metadata", root_ + "/store", fs::copy_options::recursive);
  auto restored = Open("/store");
  auto records = restored->Read();
  ASSERT_TRUE(records) << records.error().ToString();
  ASSERT_EQ(records->jobs.size(), 1U);
  EXPECT_EQ(records->jobs[0].job, "before");
  EXPECT_EQ(records->jobs[0].incarnation, Incarnation{3});
  EXPECT_NE(restored->life(), life) << "a copy has a new life";
  const LifeId again = restored->life();
  restored.reset();
  restored = Open("/store");
  EXPECT_EQ(restored->life(), again) << "and keeps it";
  // Agents without lives have seen later epochs of the lost store, and still accept this one.
  EXPECT_GT(restored->epoch().value, seen.value + 1000);
}

TEST_F(BackupTest, ABackupNeverOverwrites) {
  { auto store = Open("/store"); }
  ASSERT_TRUE(BackUpStore(root_ + "/store", root_ + "/backup"));
  auto again = BackUpStore(root_ + "/store", root_ + "/backup");
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(BackUpStore(root_ + "/none", root_ + "/other").error().code(), ErrorCode::kNotFound);
  EXPECT_FALSE(fs::exists(root_ + "/none"));
}

}  // namespace
}  // namespace holdfast::coord
