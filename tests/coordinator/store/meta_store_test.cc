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

// Properties of RocksStore and MemoryStore; tests/coordinator/etcd/contract_test.cc has the
// contract of every MetaStore.

namespace holdfast::coord {
namespace {
using ::testing::HasSubstr;

std::string MakeTempDir() {
  std::string pattern = (std::filesystem::temp_directory_path() / "store-XXXXXX").string();
  return ::mkdtemp(pattern.data()) == nullptr ? std::string() : pattern;
}

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

/// Runs before the other tests, since a child of a process with threads must not start any.
using RocksStoreDeathTest = RocksStoreTest;
TEST_F(RocksStoreDeathTest, ACommitThatReturnedSurvivesSigkill) {
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
  ::close(pipe_fds[1]);
  uint64_t last = 0;
  while (last < 20) ASSERT_EQ(::read(pipe_fds[0], &last, sizeof(last)), ssize_t{sizeof(last)});
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
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
