// Stragglers and slow transfers, as the detector reports them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/coordinator/detect/detect_test_util.h"

namespace holdfast::detect {
namespace {

/// Groups of ranks that compute, wait elsewhere, and then meet in an all-reduce of their group.
class GroupsAtWork {
 public:
  /// `first_role`: the role of the first group.
  GroupsAtWork(uint32_t world, uint32_t group_size, uint64_t own_ms, uint64_t elsewhere_ms,
               CommunicatorRole first_role = CommunicatorRole::kData)
      : own_ms_(world, own_ms),
        bytes_(world, 1 << 20),
        transfer_ms_(world / group_size, 40),
        group_size_(group_size),
        elsewhere_ms_(elsewhere_ms),
        job_(world),
        clock_ns_(world, kMs),
        blocked_ns_(world, 1) {
    for (uint32_t first = 0; first < world; first += group_size) {
      std::vector<uint32_t> members;
      for (uint32_t i = 0; i < group_size; ++i) members.push_back(first + i);
      job_.AddComm(kAll + first, first == 0 ? first_role : CommunicatorRole::kData, members);
    }
  }

  void SetOwn(uint32_t rank, uint64_t own_ms) { own_ms_[rank] = own_ms; }
  void SetBytes(uint32_t rank, uint64_t bytes) { bytes_[rank] = bytes; }
  void SetTransfer(uint32_t group, uint64_t transfer_ms) { transfer_ms_[group] = transfer_ms; }
  /// Runs iterations and returns the verdicts after the last one.
  std::vector<Verdict> Run(int iterations) {
    std::vector<Verdict> verdicts;
    for (int i = 0; i < iterations; ++i) verdicts = Iterate();
    return verdicts;
  }
  /// Runs iterations and returns the ranks that a verdict named after any of them.
  std::set<uint32_t> NamedIn(int iterations) {
    std::set<uint32_t> named;
    for (int i = 0; i < iterations; ++i) {
      for (const Verdict& verdict : Iterate()) {
        for (const Rank rank : verdict.ranks) named.insert(rank.value);
      }
    }
    return named;
  }

 private:
  std::vector<Verdict> Iterate() {
    const auto world = static_cast<uint32_t>(own_ms_.size());
    const uint64_t slowest_ms = *std::max_element(own_ms_.begin(), own_ms_.end());
    job_.Advance(std::chrono::milliseconds(slowest_ms + elsewhere_ms_ + 40));
    std::vector<Digest> digests;
    for (uint32_t node = 0; node < (world + 1) / 2; ++node) digests.push_back(job_.DigestOf(node));
    for (uint32_t rank = 0; rank < world; ++rank) {
      const uint64_t transfer_ms = transfer_ms_[rank / group_size_];
      // The own time has a little noise.
      const uint64_t own_ns = own_ms_[rank] * kMs + (sequence_ * 7 + rank * 5) % 3 * kMs / 10;
      const uint64_t start = clock_ns_[rank] + own_ns + elsewhere_ms_ * kMs;
      const auto group = own_ms_.begin() + rank / group_size_ * group_size_;
      const uint64_t last_ms = *std::max_element(group, group + group_size_);
      const uint64_t stop = clock_ns_[rank] + (last_ms + elsewhere_ms_ + transfer_ms) * kMs + kMs;
      blocked_ns_[rank] += elsewhere_ms_ * kMs;
      digests[rank / 2].ended.push_back({Rank{rank},
                                         {.communicator = {kAll + rank / group_size_ * group_size_},
                                          .sequence = sequence_,
                                          .bytes = 1 << 20,
                                          .started_ns = start,
                                          .ended_ns = stop,
                                          .blocked_ns = blocked_ns_[rank],
                                          .moved_bytes = sequence_ * bytes_[rank] + 1,
                                          .kind = kReduce,
                                          .dtype = 7}});
      blocked_ns_[rank] += stop - start;
      clock_ns_[rank] = stop;
    }
    ++sequence_;
    for (const Digest& digest : digests) job_.detector.Observe(digest, job_.now());
    return job_.detector.Evaluate(job_.now());
  }

  std::vector<uint64_t> own_ms_;
  std::vector<uint64_t> bytes_;
  std::vector<uint64_t> transfer_ms_;
  const uint32_t group_size_;
  const uint64_t elsewhere_ms_;
  FakeJob job_;
  std::vector<uint64_t> clock_ns_;
  std::vector<uint64_t> blocked_ns_;
  uint64_t sequence_ = 0;
};

TEST(StragglerTest, OfRareOperationsFewWindowsAreEnough) {
  GroupsAtWork job(4, 4, 90'000, 0);
  EXPECT_TRUE(job.Run(3).empty());
  job.SetOwn(2, 99'000);
  const std::vector<Verdict> verdicts = job.Run(5);
  ASSERT_EQ(verdicts.size(), 1U);
  EXPECT_EQ(verdicts[0].fault, FaultClass::kComputeSlow);
  EXPECT_EQ(verdicts[0].ranks, std::vector{Rank{2}});
}

TEST(StragglerTest, TheLaterARankIsTheFewerWindowsAreEnough) {
  for (const uint64_t own_ms : {8'800, 10'400}) {
    GroupsAtWork job(4, 4, 8'000, 0);
    EXPECT_TRUE(job.Run(6).empty());
    job.SetOwn(2, own_ms);
    EXPECT_EQ(job.Run(5).size(), own_ms > 10'000 ? 1U : 0U) << own_ms;
    EXPECT_EQ(job.Run(5).size(), 1U) << own_ms;
  }
}

TEST(StragglerTest, ASlowerKindIsKnownAfterFewWindows) {
  GroupsAtWork job(4, 4, 8'000, 0);
  job.SetOwn(2, 12'000);
  job.SetOwn(3, 12'200);
  EXPECT_THAT(job.NamedIn(16), testing::IsEmpty());
}

TEST(StragglerTest, PausesInRareOperationsAreNoSlowness) {
  GroupsAtWork job(4, 4, 90'000, 0);
  for (int i = 0; i < 10; ++i) {
    job.SetOwn(2, i % 4 == 3 ? 90'000 : 120'000);
    EXPECT_TRUE(job.Run(1).empty()) << i;
  }
}

TEST(StragglerTest, TwoRanksThatWereAlwaysSlowAreOfASlowerKind) {
  GroupsAtWork job(4, 4, 90'000, 0);
  job.SetOwn(2, 99'000);
  job.SetOwn(3, 98'000);
  EXPECT_TRUE(job.Run(12).empty());
}

TEST(StragglerTest, TheOwnTimeOfAPairCountsAndNotTheWindow) {
  // Half of an iteration is a wait elsewhere. 10 % more own time is less than 5 % of the window.
  GroupsAtWork job(8, 2, 500, 460);
  job.SetOwn(5, 550);
  const std::vector<Verdict> verdicts = job.Run(60);
  ASSERT_EQ(verdicts.size(), 1U);
  EXPECT_EQ(verdicts[0].ranks, std::vector{Rank{5}});
}

TEST(StragglerTest, APairWhoseOwnTimesDifferLittleIsHealthy) {
  GroupsAtWork job(8, 2, 500, 460);
  job.SetOwn(5, 530);
  EXPECT_TRUE(job.Run(60).empty());
}

TEST(StragglerTest, AChangeOfManyMembersIsNoRanksFault) {
  for (const uint32_t changed : {1U, 3U}) {
    GroupsAtWork job(8, 8, 1000, 0);
    EXPECT_TRUE(job.Run(60).empty());
    for (uint32_t rank = 0; rank < changed; ++rank) job.SetOwn(rank, 1050);
    EXPECT_EQ(job.NamedIn(60).size(), changed == 1 ? 1U : 0U);
  }
}

TEST(StragglerTest, WhileTransfersAreSlowASharedChangeIsNoRanksFault) {
  for (const bool congestion : {false, true}) {
    GroupsAtWork job(8, 4, 1000, 0);
    EXPECT_TRUE(job.Run(60).empty());
    for (const uint32_t rank : {2U, 3U}) job.SetOwn(rank, 1060);
    if (congestion) job.SetTransfer(0, 90);
    EXPECT_EQ(job.NamedIn(60).size(), congestion ? 0U : 2U);
  }
}

TEST(StragglerTest, ASmallChangeOfARankThatWasLateBeforeIsNoFault) {
  struct Case {
    uint64_t before_ms;
    uint64_t after_ms;
    bool named;
  };
  for (const Case& one : {Case{1000, 1016, true}, {1020, 1036, false}, {1020, 1090, true}}) {
    GroupsAtWork job(8, 8, 1000, 0);
    job.SetOwn(5, one.before_ms);
    EXPECT_TRUE(job.Run(60).empty());
    job.SetOwn(5, one.after_ms);
    EXPECT_EQ(job.NamedIn(60).size(), one.named ? 1U : 0U) << one.before_ms << one.after_ms;
  }
}

TEST(StragglerTest, AChangeInAPairMustExceedTheNoiseOfPairs) {
  for (const bool noisy : {false, true}) {
    GroupsAtWork job(8, 2, 1000, 0);
    std::set<uint32_t> named;
    for (int i = 0; i < 500; ++i) {
      // Congestion delays a rank of the other pairs, for longer than it takes to find a straggler.
      for (const uint32_t rank : {0U, 2U, 6U}) {
        job.SetOwn(rank, noisy && i / 25 % 2 == 1 ? 1008 : 1000);
      }
      if (i >= 400) job.SetOwn(5, 1020);
      named.merge(job.NamedIn(1));
    }
    EXPECT_EQ(named.count(5), noisy ? 0U : 1U);
  }
}

TEST(StragglerTest, TheCorrectionOfDifferentWorkMayBeWrong) {
  // Ranks 2 and 3 have more work, of which the last part takes longer than the rest.
  for (const bool work_differs : {false, true}) {
    GroupsAtWork job(4, 4, 1000, 0);
    for (const uint32_t rank : {2U, 3U}) {
      if (work_differs) job.SetOwn(rank, 1250);
      if (work_differs) job.SetBytes(rank, 3 << 19);
    }
    job.SetOwn(3, work_differs ? 1310 : 1060);
    EXPECT_EQ(job.Run(60).size(), work_differs ? 0U : 1U);
  }
}

TEST(SlowTransferTest, TheConnectionOfAPairIsNotNamedIfOtherRanksAreSlowToo) {
  for (const bool others_too : {false, true}) {
    GroupsAtWork job(8, 2, 500, 0, CommunicatorRole::kTensor);
    EXPECT_TRUE(job.Run(120).empty());
    job.SetTransfer(2, 120);
    if (others_too) job.SetTransfer(0, 119);
    const std::vector<Verdict> verdicts = job.Run(300);
    ASSERT_FALSE(verdicts.empty());
    for (const Verdict& verdict : verdicts) EXPECT_EQ(verdict.edge.has_value(), !others_too);
  }
}

TEST(SlowTransferTest, TheConnectionOfTheOnlySlowPairIsNamed) {
  for (const bool others_too : {false, true}) {
    GroupsAtWork job(8, 2, 500, 0);
    EXPECT_TRUE(job.Run(120).empty());
    job.SetTransfer(2, 120);
    if (others_too) job.SetTransfer(0, 119);
    const std::vector<Verdict> verdicts = job.Run(300);
    ASSERT_EQ(verdicts.size(), 1U);
    EXPECT_EQ(verdicts[0].fault, FaultClass::kCommSlow);
    EXPECT_EQ(verdicts[0].edge.has_value(), !others_too);
    if (others_too) continue;
    EXPECT_EQ(*verdicts[0].edge, (Edge{Rank{4}, Rank{5}}));
  }
}

}  // namespace
}  // namespace holdfast::detect
