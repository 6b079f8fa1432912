// The contract of every MetaStore: RocksDB, memory, etcd with three real members, and a simulated
// etcd.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "coordinator/store/catalog.h"
#include "testing/cluster/cluster.h"
#include "testing/etcd/members.h"
#include "tests/coordinator/etcd/store_kinds.h"

namespace holdfast::coord {
namespace {
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class MetaStoreTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    auto dir = local::MakeTempDir("store");
    ASSERT_TRUE(dir.has_value()) << dir.error().ToString();
    dir_ = *dir;
    place_ = MakeStorePlace(GetParam(), dir_);
    if (place_ == nullptr) GTEST_SKIP() << local::kNoEtcd;
    Reopen();
  }
  void TearDown() override {
    store_.reset();
    place_.reset();
    std::filesystem::remove_all(dir_);
  }
  void Reopen() {
    store_.reset();
    auto store = place_->Open();
    ASSERT_TRUE(store.has_value()) << store.error().ToString();
    store_ = *std::move(store);
  }
  bool Put(const std::string& key, const std::string& value) {
    const Mutation mutation{key, value};
    return store_->Commit({}, {&mutation, 1}).value();
  }
  std::vector<std::string> Keys(std::string_view prefix) {
    std::vector<std::string> keys;
    const std::vector<KeyValue> entries = store_->Range(prefix).value();
    for (const KeyValue& entry : entries) keys.push_back(entry.key);
    return keys;
  }

  std::string dir_;
  std::unique_ptr<StorePlace> place_;
  std::unique_ptr<MetaStore> store_;
};

TEST_P(MetaStoreTest, GetAfterCommit) {
  EXPECT_EQ(store_->Get("x").value(), std::nullopt);
  EXPECT_TRUE(Put("x", "1"));
  EXPECT_TRUE(Put("x", std::string("2\0z", 3)));
  EXPECT_EQ(store_->Get("x").value(), std::string("2\0z", 3));
  Reopen();
  EXPECT_EQ(store_->Get("x").value(), std::string("2\0z", 3));
}

TEST_P(MetaStoreTest, RangeIsOrderedAndBoundedByThePrefix) {
  for (const char* key : {"b/2", "a/9", "b/10", "b/1", "b", "c/1"}) EXPECT_TRUE(Put(key, "v"));
  EXPECT_THAT(Keys("b/"), ElementsAre("b/1", "b/10", "b/2"));
  EXPECT_THAT(Keys("d"), IsEmpty());
  EXPECT_EQ(Keys("").size(), 6U);
}

TEST_P(MetaStoreTest, CommitIsAllOrNothing) {
  EXPECT_TRUE(Put("epoch", "7"));
  const Mutation mutations[] = {{"x", "1"}, {"y", "2"}, {"epoch", std::nullopt}};
  const Compare wrong[] = {{"epoch", "8"}};
  EXPECT_FALSE(store_->Commit(wrong, mutations).value());
  const Compare present[] = {{"epoch", std::nullopt}};
  EXPECT_FALSE(store_->Commit(present, mutations).value());
  EXPECT_THAT(Keys(""), ElementsAre("epoch"));
  const Compare right[] = {{"epoch", "7"}, {"x", std::nullopt}};
  EXPECT_TRUE(store_->Commit(right, mutations).value());
  EXPECT_THAT(Keys(""), ElementsAre("x", "y"));
}

TEST_P(MetaStoreTest, LaterMutationsWin) {
  const Mutation mutations[] = {{"x", "1"}, {"x", "2"}, {"y", "1"}, {"y", std::nullopt}};
  EXPECT_TRUE(store_->Commit({}, mutations).value());
  EXPECT_THAT(Keys(""), ElementsAre("x"));
  EXPECT_EQ(store_->Get("x").value(), "2");
}

TEST_P(MetaStoreTest, ManyRecordsChangeInOneTransaction) {
  std::vector<Mutation> puts;
  std::vector<Mutation> erases;
  for (int i = 0; i < 1'000; ++i) {
    const std::string key = fmt::format("r/{:04}", i);
    puts.push_back({key, key + "!"});
    if (i % 2 == 0) erases.push_back({key, std::nullopt});
  }
  ASSERT_TRUE(store_->Commit({}, puts).value());
  EXPECT_EQ(store_->Range("r/").value().size(), 1'000U);
  ASSERT_TRUE(store_->Commit({}, erases).value());
  Reopen();
  const auto left = store_->Range("r/").value();
  ASSERT_EQ(left.size(), 500U);
  for (size_t i = 0; i < left.size(); ++i) {
    EXPECT_EQ(left[i].key, fmt::format("r/{:04}", 2 * i + 1));
    EXPECT_EQ(left[i].value, left[i].key + "!");
  }
}

TEST_P(MetaStoreTest, LargeRecordsAreStoredByteForByte) {
  std::string large(1 << 20, '\0');
  for (size_t i = 0; i < large.size(); ++i) large[i] = static_cast<char>(i * 2654435761U >> 24);
  EXPECT_TRUE(Put("large", large));
  Reopen();
  EXPECT_TRUE(store_->Get("large").value() == large);
}

TEST_P(MetaStoreTest, KeysOfAllBytesAreOrdered) {
  EXPECT_TRUE(Put("k/\x01", "a"));
  EXPECT_TRUE(Put("k/\xff\xff", "b"));
  EXPECT_TRUE(Put("k0", "c"));
  EXPECT_THAT(Keys("k/"), ElementsAre("k/\x01", "k/\xff\xff"));
}

TEST_P(MetaStoreTest, EachOpeningTakesTheNextEpochAndTheOlderOneIsFenced) {
  auto first = Catalog::Open(std::move(store_), "here");
  ASSERT_TRUE(first.has_value()) << first.error().ToString();
  EXPECT_EQ((*first)->epoch(), Epoch{1});
  const LifeId life = (*first)->life();
  if (GetParam() == "rocksdb") first->reset();  // its directory is locked
  Reopen();
  auto second = Catalog::Open(std::move(store_), "here");
  ASSERT_TRUE(second.has_value()) << second.error().ToString();
  EXPECT_EQ((*second)->epoch(), Epoch{2});
  EXPECT_EQ((*second)->life(), life);
  if (GetParam() == "rocksdb") return;
  const Effect effect = PutQuarantine{{"n1", "old", 0}};
  EXPECT_EQ((*first)->Write({&effect, 1}).code(), ErrorCode::kFenced);
  EXPECT_THAT((*second)->Read().value().quarantine, IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Stores, MetaStoreTest,
                         ::testing::Values("rocksdb", "memory", "etcd", "simulated_etcd"),
                         [](const auto& param_info) { return param_info.param; });

}  // namespace
}  // namespace holdfast::coord
