#include "agent/pipeline/known_commits.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <future>

#include "base/clock.h"
#include "base/job_name.h"
#include "tests/agent/pipeline/parts.h"

namespace holdfast::agent {
namespace {
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class ListingLink : public FakeCoordinator {
 public:
  void SetKnownCommits(std::vector<VersionCommit> commits) override { listed = std::move(commits); }
  std::vector<VersionCommit> listed;
};

VersionId V(uint64_t step) { return {Incarnation{1}, Step{step}}; }
VersionCommit CommitOf(uint64_t step, uint64_t life = 5) {
  return {"job", LifeId{life}, V(step), 1, 100 + step};
}
JobState StateWith(std::vector<VersionCommit> commits) {
  JobState state;
  state.job = "job";
  state.commits = std::move(commits);
  return state;
}

class KnownCommitsTest : public PartsTest {
 protected:
  void SetUp() override {
    PartsTest::SetUp();
    commits_ = std::make_unique<KnownCommits>(*ranks_, *volume_, listing_, background_, clock_);
  }
  void TearDown() override {
    background_.Stop();
    commits_.reset();
    PartsTest::TearDown();
  }
  std::vector<VersionCommit> Stored() {
    return volume_->ReadCommits().value_or(std::vector<VersionCommit>{});
  }
  /// Ticks, and waits until the file has what is expected.
  bool Writes(const std::vector<VersionCommit>& expected) {
    return Eventually([&] {
      commits_->Tick();
      return Stored() == expected;
    });
  }

  ManualClock clock_;
  ListingLink listing_;
  Executor background_{1, Clock::Real()};
  std::unique_ptr<KnownCommits> commits_;
};

TEST_F(KnownCommitsTest, ACommitIsListedAtOnceAndAfterTheNextStart) {
  commits_->Add(StateWith({CommitOf(10), CommitOf(11)}));
  EXPECT_THAT(listing_.listed, ElementsAre(CommitOf(10), CommitOf(11)));
  EXPECT_THAT(Stored(), IsEmpty()) << "the loop thread writes nothing";
  EXPECT_TRUE(Writes({CommitOf(10), CommitOf(11)}));
  listing_.listed.clear();
  KnownCommits again(*ranks_, *volume_, listing_, background_, clock_);
  again.Load();
  EXPECT_THAT(listing_.listed, ElementsAre(CommitOf(10), CommitOf(11)));
}

TEST_F(KnownCommitsTest, AJobThatSavesEveryStepDoesNotSyncEveryStep) {
  commits_->Add(StateWith({CommitOf(10)}));
  ASSERT_TRUE(Writes({CommitOf(10)}));
  for (uint64_t step = 11; step < 20; ++step) {
    commits_->Add(StateWith({CommitOf(step)}));
    commits_->Tick();
    std::promise<void> idle;
    ASSERT_TRUE(background_.Post([&idle] { idle.set_value(); }));
    idle.get_future().wait();
  }
  EXPECT_THAT(Stored(), ElementsAre(CommitOf(10)));
  clock_.Advance(std::chrono::seconds(2));
  EXPECT_TRUE(Writes({CommitOf(19)})) << "of versions that are not here, only the newest stay";
  // The end of the agent does not wait.
  commits_->Add(StateWith({CommitOf(20)}));
  background_.Stop();
  commits_->Flush();
  EXPECT_THAT(Stored(), ElementsAre(CommitOf(20)));
}

TEST_F(KnownCommitsTest, TheAttachListsThe4096NewestCommits) {
  constexpr uint64_t kListed = 4096;
  std::vector<VersionCommit> all;
  for (uint64_t step = 1; step <= kListed + 3; ++step) all.push_back(CommitOf(step));
  commits_->Add(StateWith(all));
  const std::vector<VersionCommit> newest(all.begin() + 3, all.end());
  EXPECT_EQ(listing_.listed, newest) << "also before the file is written";
  EXPECT_TRUE(Writes(newest));
  EXPECT_EQ(listing_.listed, newest);
}

TEST_F(KnownCommitsTest, CommitsStayAsLongAsTheShardsAreHere) {
  auto rank = Reserve("job", Rank{0});
  ASSERT_TRUE(rank) << rank.error().ToString();
  Put(*rank, V(10));
  commits_->Add(StateWith({CommitOf(9), CommitOf(10, 4)}));
  ASSERT_TRUE(Writes({CommitOf(10, 4), CommitOf(9)}));
  // Another life, which knows neither.
  commits_->Add(StateWith({CommitOf(30)}));
  clock_.Advance(std::chrono::seconds(2));
  EXPECT_TRUE(Writes({CommitOf(10, 4), CommitOf(30)}));
  EXPECT_THAT(listing_.listed, ElementsAre(CommitOf(10, 4), CommitOf(30)));
  ASSERT_TRUE((*rank)->slots.pins().Discard(V(10)).ok());
  commits_->Add(StateWith({CommitOf(31)}));
  clock_.Advance(std::chrono::seconds(2));
  EXPECT_TRUE(Writes({CommitOf(31)}));
}

TEST_F(KnownCommitsTest, AJobThatIsNoLongerHereLeavesNothing) {
  auto rank = Reserve("job", Rank{0});
  ASSERT_TRUE(rank) << rank.error().ToString();
  Put(*rank, V(10));
  commits_->Add(StateWith({CommitOf(10), CommitOf(11)}));
  ASSERT_TRUE(Writes({CommitOf(10), CommitOf(11)}));
  commits_->Drop("job");
  clock_.Advance(std::chrono::seconds(2));
  EXPECT_TRUE(Writes({CommitOf(10)})) << "a shard of it is still here";
  ASSERT_TRUE((*rank)->slots.pins().Discard(V(10)).ok());
  JobState other = StateWith({});
  other.job = "other";
  other.commits = {{"other", LifeId{5}, V(1), 1, 7}};
  commits_->Add(other);
  clock_.Advance(std::chrono::seconds(2));
  EXPECT_TRUE(Writes(other.commits));
}

TEST_F(KnownCommitsTest, ACommitWithoutALifeProvesNothing) {
  commits_->Add(StateWith({CommitOf(10, 0)}));
  EXPECT_THAT(listing_.listed, IsEmpty());
}

TEST_F(KnownCommitsTest, AFileOfANewerReleaseStaysAndADamagedOneIsReplaced) {
  ASSERT_TRUE(volume_->WriteCommits({CommitOf(1)}).ok());
  const std::string path = "data/" + std::string(kCommitsName);
  const auto overwrite = [&](const std::string& text) {
    const Status done = disk_.Damage(path, [&](std::vector<std::byte>& bytes) {
      bytes.resize(text.size());
      std::memcpy(bytes.data(), text.data(), text.size());
    });
    ASSERT_TRUE(done.ok()) << done.ToString();
  };
  std::string newer = "holdfast_commits = 2\n";
  newer += fmt::format("crc32c = {:08x}\n", Crc32c(std::as_bytes(std::span(newer))));
  overwrite(newer);
  commits_->Load();
  commits_->Add(StateWith({CommitOf(10)}));
  background_.Stop();
  commits_->Flush();
  EXPECT_EQ(volume_->ReadCommits().error().code(), ErrorCode::kUnsupported);
  overwrite("damage");
  KnownCommits next(*ranks_, *volume_, listing_, background_, clock_);
  next.Load();
  next.Add(StateWith({CommitOf(10)}));
  next.Flush();
  EXPECT_THAT(Stored(), ElementsAre(CommitOf(10)));
}

}  // namespace
}  // namespace holdfast::agent
