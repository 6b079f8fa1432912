#include "coordinator/store/catalog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/store/memory_store.h"
#include "coordinator/store/record_codec.h"

namespace holdfast::coord {
namespace {
using ::testing::HasSubstr;

std::unique_ptr<MetaStore> Store(MemoryStoreData& data) {
  return std::make_unique<MemoryStore>(data);
}

TEST(CatalogTest, EachOpeningTakesTheNextEpoch) {
  MemoryStoreData data;
  EXPECT_EQ(Catalog::Open(Store(data), "prod").value()->epoch(), Epoch{1});
  EXPECT_EQ(Catalog::Open(Store(data), "prod").value()->epoch(), Epoch{2});
  auto other = Catalog::Open(Store(data), "test");
  ASSERT_FALSE(other.has_value());
  EXPECT_EQ(other.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(other.error().message(), HasSubstr("belongs to cluster 'prod'"));
  EXPECT_EQ(Catalog::Open(Store(data), "prod").value()->epoch(), Epoch{3});
}

TEST(CatalogTest, ASuccessorFencesItsPredecessor) {
  MemoryStoreData data;
  auto older = Catalog::Open(Store(data), "prod").value();
  auto newer = Catalog::Open(Store(data), "prod").value();
  const std::vector<Effect> effects = {
      PutJob{{"gpt", 1, Incarnation{1}, {}, {}, Step{0}, false, 0, 0, {}, 0}}};
  EXPECT_EQ(older->Write(effects).code(), ErrorCode::kFenced);
  EXPECT_TRUE(newer->Read().value().jobs.empty());
  EXPECT_TRUE(newer->Write(effects).ok());
  EXPECT_EQ(newer->Read().value().jobs.size(), 1U);
}

TEST(CatalogTest, WritesTheEffectsInOrder) {
  MemoryStoreData data;
  auto catalog = Catalog::Open(Store(data), "prod").value();
  const VersionId version{Incarnation{1}, Step{5}};
  VersionRecord record;
  record.job = "gpt";
  record.version = version;
  record.world = 1;
  record.tiers = TierBit(Tier::kMemory);
  record.digests = {7};
  LineageRecord lineage{"gpt", Incarnation{1}, "run", 1, Decision::kFresh, {}};
  ASSERT_TRUE(catalog
                  ->Write(std::vector<Effect>{PutVersion{record, 0}, EraseVersion{"gpt", version},
                                              PutVersion{record, TierBit(Tier::kMemory)},
                                              PutLineage{lineage}, Reply{}})
                  .ok());
  Records records = catalog->Read().value();
  ASSERT_EQ(records.versions.size(), 1U);
  EXPECT_EQ(records.versions[0], record);
  EXPECT_EQ(records.lineages.at(0), lineage);
  ASSERT_TRUE(catalog->Write(std::vector<Effect>{EraseVersion{"gpt", version}}).ok());
  EXPECT_TRUE(catalog->Read().value().versions.empty());
}

/// Writes effects that no correct coordinator makes: nothing may reach the store.
class CatalogInvariantTest : public ::testing::Test {
 protected:
  CatalogInvariantTest() {
    record_.job = "gpt";
    record_.version = {Incarnation{1}, Step{5}};
    record_.world = 2;
    record_.tiers = TierBit(Tier::kMemory);
    record_.digests = {7, 8};
  }
  void ExpectRefused(const std::vector<Effect>& effects, const std::string& invariant) {
    auto catalog = Catalog::Open(Store(data_), "prod", monitor_).value();
    const MemoryStoreData before = data_;
    const Status status = catalog->Write(effects);
    EXPECT_EQ(status.code(), ErrorCode::kInternal);
    EXPECT_THAT(status.message(), HasSubstr(invariant));
    EXPECT_EQ(data_, before);
    EXPECT_EQ(catalog->Write(std::vector<Effect>{EraseSuspect{"n7"}}).code(), ErrorCode::kInternal)
        << "nothing is stored after a violation";
  }

  MemoryStoreData data_;
  InvariantMonitor monitor_{"coordinator"};
  VersionRecord record_;
};

TEST_F(CatalogInvariantTest, ABatchCommitsAVersionOnceAtATier) {
  const PutVersion put{record_, TierBit(Tier::kMemory)};
  ExpectRefused({put, put}, "only does not hold");
}

TEST_F(CatalogInvariantTest, ACommitRecordHasEveryDigest) {
  record_.digests.pop_back();
  ExpectRefused({PutVersion{record_, TierBit(Tier::kMemory)}}, "record.digests.size()");
}

TEST_F(CatalogInvariantTest, ACommitRecordNamesItsTier) {
  ExpectRefused({PutVersion{record_, TierBit(Tier::kDisk)}}, "committed_tier_bit");
}

TEST_F(CatalogInvariantTest, AStartDoesNotRestoreAVersionOfALaterOne) {
  const VersionId later{Incarnation{2}, Step{5}};
  const LineageRecord lineage{"gpt", Incarnation{1}, "run", 2, Decision::kVersion, later};
  ExpectRefused({PutLineage{lineage, LineageChange::kDecided}},
                "record.restored.incarnation <= record.incarnation");
}

TEST(CatalogTest, SuspectNodesAreKeptUntilTheyAreErased) {
  MemoryStoreData data;
  const SuspectRecord suspect{"n7", "Xid 79 on GPU 3", 5};
  auto catalog = Catalog::Open(Store(data), "prod").value();
  ASSERT_TRUE(catalog->Write(std::vector<Effect>{PutSuspect{suspect}}).ok());
  catalog = Catalog::Open(Store(data), "prod").value();
  ASSERT_EQ(catalog->Read().value().suspects, std::vector{suspect});
  ASSERT_TRUE(catalog->Write(std::vector<Effect>{EraseSuspect{"n7"}}).ok());
  EXPECT_TRUE(catalog->Read().value().suspects.empty());
}

TEST(CatalogTest, ADamagedRecordStopsTheStart) {
  MemoryStoreData data;
  (void)Catalog::Open(Store(data), "prod").value();
  data["version/gpt/0000000000000001-0000000000000005"] = "garbage";
  auto catalog = Catalog::Open(Store(data), "prod").value();
  EXPECT_EQ(catalog->Read().error().code(), ErrorCode::kDataLoss);
}

}  // namespace
}  // namespace holdfast::coord
