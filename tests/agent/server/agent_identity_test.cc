#include "agent/server/agent_identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

namespace holdfast::agent {
namespace {
namespace fs = std::filesystem;

class AgentIdentityTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "identity-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    for (const char* name : {"d0", "d1"}) {
      fs::create_directory(root_ / name);
      dirs_.push_back((root_ / name).string());
    }
  }
  void TearDown() override { fs::remove_all(root_); }
  fs::path FileOf(size_t dir) const { return fs::path(dirs_[dir]) / "HOLDFAST.agent"; }

  fs::path root_;
  std::vector<std::string> dirs_;
};

TEST_F(AgentIdentityTest, CountsStartsOfOneAgent) {
  const auto first = CountStart(dirs_);
  ASSERT_TRUE(first.has_value()) << first.error().ToString();
  EXPECT_EQ(first->starts, 1U);
  EXPECT_NE(first->id, 0U);
  const auto second = CountStart(dirs_);
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(second->id, first->id);
  EXPECT_EQ(second->starts, 2U);
  EXPECT_GT(second->StartNumber(), first->StartNumber());
  struct stat info {};
  ASSERT_EQ(::stat(FileOf(0).c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777U, 0600U);
  for (const std::string& dir : dirs_) {
    EXPECT_EQ(std::distance(fs::directory_iterator(dir), fs::directory_iterator()), 1) << dir;
  }
}

TEST_F(AgentIdentityTest, OneDirectoryIsEnoughToFindTheCount) {
  const auto first = CountStart(dirs_);
  ASSERT_TRUE(first.has_value());
  fs::remove(FileOf(0));
  EXPECT_EQ(CountStart(dirs_)->starts, 2U);
  std::ofstream(FileOf(1)) << "holdfast_agent = 1\nid = 1\nstarts = 99\ncrc32c = 0\n";
  const auto third = CountStart(dirs_);
  EXPECT_EQ(third->id, first->id);
  EXPECT_EQ(third->starts, 3U);
}

TEST_F(AgentIdentityTest, EmptyDisksAreANewAgent) {
  const auto first = CountStart(dirs_);
  fs::remove(FileOf(0));
  fs::remove(FileOf(1));
  const auto second = CountStart(dirs_);
  EXPECT_NE(second->id, first->id);
  EXPECT_EQ(second->starts, 1U);
}

TEST_F(AgentIdentityTest, FailsWhenNoDirectoryCanStoreTheCount) {
  EXPECT_FALSE(CountStart({(root_ / "absent").string()}).has_value());
}

TEST_F(AgentIdentityTest, ParsesExactlyWhatItWrites) {
  const AgentIdentity identity{0x3d1f0a9c77e2b854, 17};
  const std::string text = RenderIdentity(identity);
  EXPECT_EQ(text, "holdfast_agent = 1\nid = 3d1f0a9c77e2b854\nstarts = 17\ncrc32c = da8dd096\n");
  EXPECT_EQ(ParseIdentity(text).value(), identity);
  for (size_t i = 0; i < text.size(); ++i) {
    std::string bad = text;
    bad[i] = bad[i] == '1' ? '2' : '1';
    EXPECT_FALSE(ParseIdentity(bad).has_value()) << i;
    EXPECT_FALSE(ParseIdentity(text.substr(0, i)).has_value()) << i;
  }
  EXPECT_FALSE(ParseIdentity(text + "more").has_value());
}

}  // namespace
}  // namespace holdfast::agent
