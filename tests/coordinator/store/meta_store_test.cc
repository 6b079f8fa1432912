#include "coordinator/store/meta_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "coordinator/store/memory_store.h"
#include "coordinator/store/rocks_store.h"

// The contract of every MetaStore, and properties of RocksStore and MemoryStore.

namespace holdfast::coord {
namespace {
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string MakeTempDir() {
  std::string pattern = (std::filesystem::temp_directory_path() / "store-XXXXXX").string();
  return ::mkdtemp(pattern.data()) == nullptr ? std::string() : pattern;
}

class MetaStoreTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    dir_ = MakeTempDir();
    ASSERT_FALSE(dir_.empty());
    Reopen();
  }
  void TearDown() override {
    store_.reset();
    std::filesystem::remove_all(dir_);
  }
  void Reopen() {
    store_.reset();
    if (GetParam() == "memory") {
      store_ = std::make_unique<MemoryStore>(data_);
      return;
    }
    auto store = RocksStore::Open(dir_ + "/a/b");
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
  MemoryStoreData data_;
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

INSTANTIATE_TEST_SUITE_P(Stores, MetaStoreTest, ::testing::Values("rocksdb", "memory"),
                         [](const auto& param_info) { return param_info.param; });

TEST(MemoryStoreTest, AFailedWriteMayOrMayNotBeThere) {
  for (auto fault : {MemoryStore::Fault::kFailApplied, MemoryStore::Fault::kFailNotApplied}) {
    MemoryStoreData data;
    MemoryStore store(data, [fault] { return fault; });
    const Mutation mutation{"x", "1"};
    EXPECT_EQ(store.Commit({}, {&mutation, 1}).error().code(), ErrorCode::kIoError);
    EXPECT_EQ(store.Commit({}, {&mutation, 1}).error().code(), ErrorCode::kIoError);
    EXPECT_EQ(data.count("x"), fault == MemoryStore::Fault::kFailApplied ? 1U : 0U);
  }
}

class RocksStoreTest : public ::testing::Test {
 protected:
  void SetUp() override { dir_ = MakeTempDir(); }
  void TearDown() override { std::filesystem::remove_all(dir_); }
  std::string dir_;
};

TEST_F(RocksStoreTest, OnlyOneProcessOpensAStore) {
  auto first = RocksStore::Open(dir_);
  ASSERT_TRUE(first.has_value());
  auto second = RocksStore::Open(dir_);
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code(), ErrorCode::kUnavailable);
  EXPECT_THAT(second.error().message(), HasSubstr("in use by another coordinator"));
}

TEST_F(RocksStoreTest, WritesNothingIntoAForeignDirectory) {
  std::ofstream(dir_ + "/thesis.tex") << "important";
  auto store = RocksStore::Open(dir_);
  ASSERT_FALSE(store.has_value());
  EXPECT_EQ(store.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(store.error().message(), HasSubstr("thesis.tex"));
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir_)) files += entry.exists();
  EXPECT_EQ(files, 1U);
}

TEST_F(RocksStoreTest, ACommitThatReturnedSurvivesSigkill) {
  int pipe_fds[2];
  ASSERT_EQ(::pipe(pipe_fds), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    auto store = RocksStore::Open(dir_);
    for (uint64_t i = 0;; ++i) {
      const Mutation mutation{"n", std::to_string(i)};
      if (!store || !(*store)->Commit({}, {&mutation, 1}).value_or(false)) ::_exit(1);
      if (::write(pipe_fds[1], &i, sizeof(i)) != sizeof(i)) ::_exit(1);
    }
  }
  uint64_t last = 0;
  while (last < 20) ASSERT_EQ(::read(pipe_fds[0], &last, sizeof(last)), ssize_t{sizeof(last)});
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::close(pipe_fds[1]);
  while (::read(pipe_fds[0], &last, sizeof(last)) == sizeof(last)) {
  }
  ::close(pipe_fds[0]);
  auto store = RocksStore::Open(dir_);
  ASSERT_TRUE(store.has_value()) << store.error().ToString();
  EXPECT_GE(std::stoull((*store)->Get("n").value().value()), last);
}

TEST_F(RocksStoreTest, DamageIsDetected) {
  {
    auto store = RocksStore::Open(dir_);
    const Mutation mutation{"x", "1"};
    ASSERT_TRUE((*store)->Commit({}, {&mutation, 1}).value());
  }
  for (const auto& entry : std::filesystem::directory_iterator(dir_)) {
    if (entry.path().filename().string().starts_with("MANIFEST")) {
      std::filesystem::resize_file(entry.path(), 10);
    }
  }
  auto store = RocksStore::Open(dir_);
  ASSERT_FALSE(store.has_value());
  EXPECT_THAT(store.error().message(), HasSubstr(dir_));
}

}  // namespace
}  // namespace holdfast::coord
