#include "coordinator/store/backup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

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
  Result<BackupCounts> BackUp(const std::string& from, const std::string& to) {
    HOLDFAST_ASSIGN_OR_RETURN(const auto records, ReadRecords(root_ + from));
    return WriteBackup(records, root_ + to);
  }
  /// Returns the names beneath the test's folder, sorted.
  std::vector<std::string> Names() {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(root_))
      names.push_back(entry.path().filename());
    std::ranges::sort(names);
    return names;
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
  auto counts = BackUp("/store", "/backup");
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
  ASSERT_TRUE(BackUp("/store", "/backup"));
  auto again = BackUp("/store", "/backup");
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(BackUp("/none", "/other").error().code(), ErrorCode::kNotFound);
  EXPECT_FALSE(fs::exists(root_ + "/none"));
}

TEST_F(BackupTest, AnUnfinishedBackupHasAnotherNameAndIsRemoved) {
  { auto store = Open("/store"); }
  const auto records = ReadRecords(root_ + "/store");
  ASSERT_TRUE(records) << records.error().ToString();
  {
    auto writer = BackupWriter::Make(root_ + "/backup/");
    ASSERT_TRUE(writer) << writer.error().ToString();
    ASSERT_TRUE(writer->Add(*records).ok());
    EXPECT_FALSE(fs::exists(root_ + "/backup"));
    EXPECT_TRUE(fs::exists(writer->unfinished() + "/metadata/CURRENT"));
    BackupCounts announced = CountOf(*records);
    ++announced.records;
    const auto lacking = writer->Publish(announced);
    ASSERT_FALSE(lacking);
    EXPECT_EQ(lacking.error().code(), ErrorCode::kDataLoss);
  }
  EXPECT_THAT(Names(), testing::ElementsAre("store"));
}

// Two backups into one folder begin at the same time, and both are written completely.
TEST_F(BackupTest, OfTwoBackupsIntoOneFolderOneSucceeds) {
  { auto store = Open("/store"); }
  const auto records = ReadRecords(root_ + "/store");
  ASSERT_TRUE(records) << records.error().ToString();
  fs::create_directory(root_ + "/backup");  // an empty folder is no obstacle
  {
    auto first = BackupWriter::Make(root_ + "/backup");
    auto second = BackupWriter::Make(root_ + "/backup");
    ASSERT_TRUE(first && second);
    ASSERT_TRUE(first->Add(*records).ok());
    ASSERT_TRUE(second->Add(*records).ok());
    ASSERT_TRUE(first->Publish(CountOf(*records)));
    const auto late = second->Publish(CountOf(*records));
    ASSERT_FALSE(late);
    EXPECT_EQ(late.error().code(), ErrorCode::kFailedPrecondition) << late.error().ToString();
  }
  EXPECT_THAT(Names(), testing::ElementsAre("backup", "store"));
  auto copied = ReadRecords(root_ + "/backup/metadata");
  ASSERT_TRUE(copied) << copied.error().ToString();
  EXPECT_EQ(copied->size(), records->size());
}

TEST_F(BackupTest, AFileOrALinkIsNoTarget) {
  { auto store = Open("/store"); }
  { std::ofstream(root_ + "/file") << "precious"; }
  fs::create_symlink(root_ + "/nowhere", root_ + "/link");
  for (const std::string name : {"/file", "/link"}) {
    const auto made = BackUp("/store", name);
    ASSERT_FALSE(made) << name;
    EXPECT_EQ(made.error().code(), ErrorCode::kFailedPrecondition) << made.error().ToString();
  }
  EXPECT_EQ(fs::file_size(root_ + "/file"), 8U);
  EXPECT_THAT(Names(), testing::ElementsAre("file", "link", "store"));
}

}  // namespace
}  // namespace holdfast::coord
