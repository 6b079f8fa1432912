// The parts of the detector of stragglers: gathering, lateness, tracks and steps.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/detect/criteria.h"
#include "coordinator/detect/gather.h"
#include "coordinator/detect/lateness.h"
#include "coordinator/detect/steps.h"
#include "coordinator/detect/track.h"
#include "tests/coordinator/detect/detect_test_util.h"

namespace holdfast::detect {
namespace {

CollectiveRecord Record(CollectiveKind kind, uint64_t sequence, uint64_t started_ns,
                        uint64_t ended_ns) {
  CollectiveRecord record;
  record.kind = kind;
  record.sequence = sequence;
  record.bytes = 1024;
  record.started_ns = started_ns;
  record.ended_ns = ended_ns;
  return record;
}

TEST(GathererTest, ReturnsOperationsInOrderOnceAllMembersReported) {
  Gatherer gatherer(2);
  gatherer.Add(Record(CollectiveKind::kAllReduce, 0, 1, 2), 0, kNow);
  gatherer.Add(Record(CollectiveKind::kAllReduce, 1, 3, 4), 0, kNow);
  gatherer.Add(Record(CollectiveKind::kAllReduce, 1, 13, 14), 1, kNow);
  EXPECT_FALSE(gatherer.Take(Clock::TimePoint::min())) << "operation 0 comes first";
  gatherer.Add(Record(CollectiveKind::kAllReduce, 0, 11, 12), 1, kNow);
  EXPECT_EQ(gatherer.Take(Clock::TimePoint::min())->sequence, 0U);
  EXPECT_EQ(gatherer.Take(Clock::TimePoint::min())->sequence, 1U);
  EXPECT_TRUE(gatherer.empty());
}

TEST(GathererTest, ReturnsAnOperationWithoutTheRecordsOfALostRank) {
  Gatherer gatherer(4);
  for (uint32_t position : {0U, 2U}) {
    gatherer.Add(Record(CollectiveKind::kAllReduce, 0, 1, 2), position, kNow);
  }
  gatherer.Add(Record(CollectiveKind::kAllReduce, 1, 3, 4), 0, kNow);
  EXPECT_FALSE(gatherer.Take(kNow - std::chrono::seconds(1)));
  const auto taken = gatherer.Take(kNow);
  ASSERT_TRUE(taken);
  EXPECT_EQ(taken->count, 2U);
  EXPECT_FALSE(gatherer.Take(kNow)) << "a quarter of the members is not enough";
  EXPECT_TRUE(gatherer.empty());
}

TEST(GathererTest, LostRecordsDoNotDelayLaterOperations) {
  Gatherer gatherer(4);
  uint64_t complete = 0;
  uint64_t partial = 0;
  for (uint64_t sequence = 0; sequence < 1'000; ++sequence) {
    for (uint32_t position = 0; position < 4; ++position) {
      // The first records of rank 3 are lost, and later one in a hundred.
      if (position == 3 && (sequence < 20 || sequence % 100 == 0)) continue;
      gatherer.Add(Record(CollectiveKind::kAllReduce, sequence, 1, 2), position, kNow);
      while (auto taken = gatherer.Take(Clock::TimePoint::min())) {
        ++(taken->count == 4 ? complete : partial);
      }
    }
  }
  EXPECT_EQ(complete, 971U);
  EXPECT_EQ(partial, 29U);
  EXPECT_TRUE(gatherer.empty());
}

TEST(GathererTest, IsBoundedAndOneRankCannotFillIt) {
  Gatherer gatherer(8);
  for (uint64_t sequence = 0; sequence < 100'000; ++sequence) {
    gatherer.Add(Record(CollectiveKind::kAllReduce, 1'000'000 + sequence, 1, 2), 0, kNow);
  }
  for (uint32_t position = 1; position < 8; ++position) {
    gatherer.Add(Record(CollectiveKind::kAllGather, 3, 1, 2), position, kNow);
  }
  gatherer.Add(Record(CollectiveKind::kAllGather, 3, 1, 2), 0, kNow);
  bool found = false;
  while (auto taken = gatherer.Take(kNow)) found |= taken->kind == CollectiveKind::kAllGather;
  EXPECT_TRUE(found);
}

/// A communicator whose members compute and then meet in an operation. Each has its own clock.
class Meeting {
 public:
  explicit Meeting(uint32_t members, bool small_job = false)
      : members_(members), lateness_(members, {}, small_job) {
    for (uint32_t i = 0; i < members; ++i) clock_.push_back(uint64_t{1000} * kMs * (i + 1));
    blocked_.resize(members);
    moved_.resize(members, 1);
  }

  /// Runs one iteration with the given own times and bytes moved, by member. `lost`: the member
  /// whose record does not arrive.
  void Iterate(const std::vector<uint64_t>& own_ms, const std::vector<uint64_t>& bytes = {},
               uint32_t lost = ~0U) {
    const uint64_t slowest = *std::max_element(own_ms.begin(), own_ms.end());
    GatheredOperation operation;
    operation.kind = CollectiveKind::kAllReduce;
    operation.sequence = sequence_++;
    operation.bytes = 1024;
    operation.count = members_;
    operation.since = kNow + std::chrono::seconds(sequence_);
    for (uint32_t i = 0; i < members_; ++i) {
      const uint64_t start = clock_[i] + own_ms[i] * kMs;
      const uint64_t stop = clock_[i] + (slowest + 100) * kMs;
      operation.samples.push_back({start, stop, blocked_[i] + 1, moved_[i]});
      if (i == lost) operation.samples.back() = {};
      blocked_[i] += stop - start;
      moved_[i] += bytes.empty() ? 1024 : bytes[i];
      clock_[i] = stop;
    }
    lateness_.Add(operation, 1000.0 * kMs, {}, true, baseline_);
  }
  const Track& track(uint32_t i) const { return lateness_.tracks()[i]; }
  bool suspicious() const { return lateness_.suspicious(); }
  const RoleBaseline& baseline() const { return baseline_; }

 private:
  const uint32_t members_;
  Lateness lateness_;
  RoleBaseline baseline_;
  std::vector<uint64_t> clock_;
  std::vector<uint64_t> blocked_;
  std::vector<uint64_t> moved_;
  uint64_t sequence_ = 0;
};

TEST(LatenessTest, TheChangeOfASlowRankOfASmallJobIsNoNoise) {
  Meeting meeting(2, /*small_job=*/true);
  for (uint64_t i = 0; i < 36; ++i) meeting.Iterate({900, 900 + i % 3});
  for (int i = 0; i < 24; ++i) meeting.Iterate({900, 1080});
  EXPECT_LT(meeting.baseline().noises.Median(), 0.01);
  EXPECT_LT(meeting.baseline().spread, 0.01);
}

TEST(LatenessTest, TheLateMemberIsLateByItsOwnTime) {
  Meeting meeting(4);
  for (int i = 0; i < 24; ++i) meeting.Iterate({900, 900, 1080, 900});
  EXPECT_EQ(meeting.track(2).late_count(20), 20U);
  EXPECT_NEAR(meeting.track(2).excess(), 180.0 / 1180, 1e-3);
  EXPECT_EQ(meeting.track(1).late_count(20), 0U);
  EXPECT_TRUE(meeting.suspicious());
}

TEST(LatenessTest, AMemberOfAPairIsNotLateIfOnlyTheOtherComputesLess) {
  // Member 0 waits for another communicator from now on, so its own time is shorter.
  for (const bool slower : {false, true}) {
    Meeting meeting(2);
    for (uint64_t i = 0; i < 24; ++i) meeting.Iterate({900 + i % 3, 901 + i % 2});
    for (int i = 0; i < 24; ++i) {
      meeting.Iterate(slower ? std::vector<uint64_t>{900, 1000} : std::vector<uint64_t>{800, 900});
    }
    EXPECT_EQ(meeting.track(1).late_count(20), slower ? 20U : 0U);
    EXPECT_EQ(meeting.track(1).slower_count(20), slower ? 20U : 0U);
  }
}

TEST(LatenessTest, AMissingMemberDoesNotMoveTheReference) {
  // Two members have more work than the others. Without one of the fast ones, the median is slow.
  const std::vector<uint64_t> own_ms = {750, 900, 749, 901};
  Meeting meeting(4);
  for (int i = 0; i < 24; ++i) meeting.Iterate(own_ms);
  for (int i = 0; i < 24; ++i) meeting.Iterate(own_ms, {}, 0);
  EXPECT_NEAR(meeting.track(3).excess(), 151.0 / 1001, 5e-3);
}

TEST(LatenessTest, ThePastIsLearnedFromCompleteWindows) {
  const std::vector<uint64_t> own_ms = {750, 900, 749, 901};
  Meeting meeting(4);
  for (int i = 0; i < 5; ++i) meeting.Iterate(own_ms);
  for (int i = 0; i < 24; ++i) meeting.Iterate(own_ms, {}, i % 4 < 2 ? 0 : ~0U);
  EXPECT_NEAR(meeting.track(3).usual(), 151.0 / 1001, 5e-3);
  EXPECT_EQ(meeting.track(3).slower_count(20), 0U);
}

TEST(LagTest, OperationsWithoutARecordCountLikeTheOthers) {
  // Member 0 joins each operation 10 ms late. Of the operations 4 to 7 a record is lost.
  LagTracker lag(2);
  const auto operation = [](uint64_t sequence, bool both) {
    GatheredOperation made;
    made.kind = CollectiveKind::kAllReduce;
    made.sequence = sequence;
    const uint64_t at = 1000 * kMs * (sequence + 1);
    made.samples = {{at + 10 * kMs, at + 20 * kMs, 1, 1}, {at, at + 20 * kMs, 1, 1}};
    if (!both) made.samples[1] = {};
    return made;
  };
  lag.Add(operation(0, true));
  lag.Begin();
  for (uint64_t sequence = 1; sequence < 4; ++sequence) lag.Add(operation(sequence, true));
  EXPECT_EQ(lag.seen(0), 1.0);
  EXPECT_NEAR(lag.sum(0), 30.0 * kMs, 1);
  lag.Add(operation(4, false));
  EXPECT_EQ(lag.seen(0), 0.75);
  EXPECT_NEAR(lag.sum(0), 40.0 * kMs, 1);
  lag.End(operation(8, true));
  EXPECT_EQ(lag.seen(0), 3.0 / 7) << "operations 5 to 7 were reported by no member";
}

TEST(LagTest, NothingIsCarriedOverIfNoKindRepeatsInAWindow) {
  for (const int windows : {1, 60}) {
    LagTracker lag(2);
    uint64_t at = 1;
    for (int i = 0; i < 300; ++i) {
      if (i % (300 / windows) == 0) lag.Begin();
      // Member 1 is late in all of ten consecutive operations.
      const uint64_t late = i / 10 % 2 == 0 ? 0 : 40 * kMs;
      GatheredOperation operation;
      operation.kind = i % 5 == 0 ? CollectiveKind::kAllGather : CollectiveKind::kAllReduce;
      operation.sequence = static_cast<uint64_t>(i);
      operation.samples = {{at, at + 50 * kMs, 1, 1}, {at + late, at + 50 * kMs, 1, 1}};
      lag.Add(operation);
      at += 100 * kMs;
    }
    EXPECT_GT(lag.carried(), 0.5) << windows;
    lag.Begin();
    EXPECT_EQ(lag.carried(), 0) << windows;
  }
}

TEST(LatenessTest, NoMemberIsLateIfAllAreSimilar) {
  Meeting meeting(4);
  for (uint64_t i = 0; i < 24; ++i) meeting.Iterate({900, 901 + i % 3, 899, 900 + i % 5});
  EXPECT_FALSE(meeting.suspicious());
}

TEST(LatenessTest, OccasionalLatenessIsNotLastingLateness) {
  Meeting meeting(4);
  for (uint64_t i = 0; i < 24; ++i) {
    meeting.Iterate({900, i % 4 == 0 ? 1000U : 900U, i % 4 == 1 ? 1000U : 900U, 900});
  }
  EXPECT_LT(meeting.track(1).late_count(20), 14U);
  EXPECT_LT(meeting.track(2).late_count(20), 14U);
}

TEST(LatenessTest, MoreWorkIsNoFault) {
  Meeting meeting(8);
  std::vector<uint64_t> own;
  std::vector<uint64_t> bytes;
  for (uint64_t i = 0; i < 8; ++i) {
    bytes.push_back((10 + i * i) << 20U);
    own.push_back(500 + 5 * (10 + i * i));  // in proportion to its bytes
  }
  for (int i = 0; i < 30; ++i) meeting.Iterate(own, bytes);
  for (uint32_t i = 0; i < 8; ++i) EXPECT_LT(meeting.track(i).late_count(20), 14U) << i;
  own[3] += 150;  // now one member is slower than its bytes explain
  for (int i = 0; i < 20; ++i) meeting.Iterate(own, bytes);
  for (uint32_t i = 0; i < 8; ++i) EXPECT_EQ(meeting.track(i).late_count(20) >= 14, i == 3) << i;
}

TEST(LatenessTest, OneStallIsNotSlowness) {
  Meeting meeting(4);
  for (int i = 0; i < 24; ++i) meeting.Iterate({900, 900, 900, i % 5 == 0 ? 9000U : 900U});
  EXPECT_EQ(meeting.track(3).very_late_count(), 0U);
}

/// A track with the thresholds of a job with little noise.
class TrackOf {
 public:
  TrackOf& Add(int windows, double excess) {
    for (int i = 0; i < windows; ++i) track_.Add(excess, {0.02, 0.01, 0.05, 0.006}, 20);
    return *this;
  }
  const Track* operator->() const { return &track_; }
  const Track& operator*() const { return track_; }

 private:
  Track track_;
};

TEST(TrackTest, ASlowdownBelowTheLimitForPeersCounts) {
  TrackOf track;
  track.Add(40, -0.003).Add(19, 0.015);
  EXPECT_EQ(track->slower_count(20), 19U);
  EXPECT_EQ(track->late_count(20), 0U) << "1.5 % is below the limit";
  EXPECT_NEAR(track->shift(), 0.018, 1e-6);
  track.Add(300, 0.015);
  EXPECT_EQ(track->slower_count(20), 20U) << "a slowdown is not learned as usual";
}

TEST(TrackTest, ASmallChangeCountsOnceItHasLasted) {
  TrackOf track;
  track.Add(40, -0.004).Add(40, 0.004);
  EXPECT_EQ(track->slower_count(20), 0U) << "0.8 % is below the limit";
  EXPECT_FALSE(track->small_change(0.006)) << "forty windows are too few";
  track.Add(41, 0.004);
  EXPECT_TRUE(track->small_change(0.006));
  EXPECT_NEAR(track->lasting_shift(), 0.008, 1e-6);
  EXPECT_FALSE(track->small_change(0.009));
  track.Add(400, 0.004);
  EXPECT_TRUE(track->small_change(0.006)) << "the change is not learned as usual";
  track.Add(21, -0.004);
  EXPECT_FALSE(track->small_change(0.006)) << "the change has ended";
}

TEST(TrackTest, ARegressionToThePeersIsNoSmallChange) {
  TrackOf track;
  track.Add(40, -0.02).Add(200, 0.001);
  EXPECT_FALSE(track->small_change(0.006));
}

TEST(TrackTest, AConstantExcessIsNoSmallChange) {
  TrackOf track;
  track.Add(200, 0.009);
  EXPECT_FALSE(track->small_change(0.006));
}

TEST(TrackTest, AConstantExcessOrARegressionToThePeersIsNoSlowdown) {
  TrackOf always;
  always.Add(60, 0.015);
  EXPECT_EQ(always->slower_count(20), 0U);
  TrackOf back;
  back.Add(40, -0.05).Add(20, 0.001);
  EXPECT_EQ(back->slower_count(20), 0U);
  EXPECT_NEAR(back->shift(), 0.051, 1e-6);
}

TEST(TrackTest, AFewWindowsAreNoHistory) {
  TrackOf track;
  track.Add(7, 0).Add(1, 0.5);
  EXPECT_EQ(track->slower_count(20), 0U);
}

TEST(TrackTest, TheErrorOfAChangeFallsWithTheWindowsAndGrowsWithTheNoise) {
  TrackOf few;
  few.Add(20, 0);
  TrackOf many;
  many.Add(200, 0);
  EXPECT_GT(few->shift_error(0.01), many->shift_error(0.01));
  EXPECT_NEAR(many->shift_error(0.01), 0.01 * 1.2533 * std::sqrt(1.0 / 20 + 1.0 / 32), 1e-6);
}

TEST(TrackTest, VeryLateWindowsAreCountedByLevelAndByWidth) {
  TrackOf track;
  track.Add(20, 0).Add(3, 0.06).Add(2, 0.30).Add(70, 0).Add(1, 0.09);
  EXPECT_EQ(track->very_late_count(0), 6U);
  EXPECT_EQ(track->very_late_count(1), 3U) << "from 8 %";
  EXPECT_EQ(track->very_late_count(3), 2U) << "from 20 %";
  EXPECT_EQ(track->very_late_count(0, 16), 1U);
  EXPECT_EQ(track->very_late_count(0, 72), 2U);
  EXPECT_EQ(track->very_late_count(3, 73), 2U);
}

TEST(LatenessTest, TheNoiseExcludesLastingDifferences) {
  Meeting meeting(2);
  for (uint64_t i = 0; i < 80; ++i) meeting.Iterate({900 + i * 7 % 5, 960 + i * 3 % 7});
  EXPECT_NEAR(meeting.baseline().noise, 0.003, 0.002) << "the lasting difference is 60 ms";
  EXPECT_LT(meeting.baseline().shifts.Median(), 0.003);
}

/// Computing overlaps `operations` transfers in each iteration, and the ranks wait for each other
/// only at its end. Each rank has its own time for an iteration.
class Overlapping {
 public:
  /// `kinds`: if 2, each operation is followed directly by one of another kind.
  Overlapping(uint32_t members, uint32_t operations, uint32_t kinds = 1)
      : members_(members),
        operations_(operations),
        kinds_(kinds),
        lateness_(members, {}),
        blocked_(members) {}

  /// In the next iteration, the rank is `ms` late in one operation only.
  void Stall(size_t rank, double ms) { stall_ = {rank, ms}; }

  void Iterate(const std::vector<double>& own_ms) {
    constexpr double kTransferMs = 5;
    std::vector<double> ended(members_);
    for (uint32_t k = 0; k < operations_; ++k) {
      GatheredOperation operation;
      operation.kind = CollectiveKind::kAllReduce;
      operation.sequence = sequence_++;
      operation.bytes = 1024;
      operation.count = members_;
      double last = 0;
      std::vector<double> starts(members_);
      for (uint32_t i = 0; i < members_; ++i) {
        starts[i] = std::max(own_ms[i] * (k + 1) / operations_, ended[i]);
        if (k == 4 && i == stall_.first) starts[i] += stall_.second;
        last = std::max(last, starts[i]);
      }
      AddOperation(operation, starts, ended, last + kTransferMs);
      if (kinds_ < 2) continue;
      operation.kind = CollectiveKind::kAllGather;
      operation.samples.clear();
      AddOperation(operation, ended, ended, last + 2 * kTransferMs);
    }
    stall_.second = 0;
    at_ms_ += ended[0];
  }
  double excess(uint32_t i) const { return lateness_.tracks()[i].excess(); }

 private:
  void AddOperation(GatheredOperation& operation, std::vector<double> starts,
                    std::vector<double>& ended, double end_ms) {
    for (uint32_t i = 0; i < members_; ++i) {
      const auto start = static_cast<uint64_t>((at_ms_ + starts[i]) * 1e6);
      ended[i] = end_ms;
      const auto stop = static_cast<uint64_t>((at_ms_ + ended[i]) * 1e6);
      operation.samples.push_back({start, stop, blocked_[i] + 1, 1});
      blocked_[i] += stop - start;
    }
    lateness_.Add(operation, 1000.0 * kMs, {}, true, baseline_);
  }

  const uint32_t members_;
  const uint32_t operations_;
  const uint32_t kinds_;
  std::pair<size_t, double> stall_{0, 0};
  Lateness lateness_;
  RoleBaseline baseline_;
  std::vector<uint64_t> blocked_;
  double at_ms_ = 1000;
  uint64_t sequence_ = 0;
};

TEST(LatenessTest, ALagInOverlappingOperationsCountsOnce) {
  // One rank of eight is 4 % slower. Its lag grows from bucket to bucket.
  Overlapping job(8, 10);
  for (int i = 0; i < 60; ++i) {
    std::vector<double> own_ms(8, 990 + i * 7 % 5);
    own_ms[3] *= 1.04;
    job.Iterate(own_ms);
  }
  EXPECT_GT(job.excess(3), 0.02);
  EXPECT_LT(job.excess(3), 0.06) << "the sum over the buckets is 20 %";
}

TEST(LatenessTest, ALeadInOverlappingOperationsCountsOnce) {
  // One rank of eight is 4 % faster. Counted in every bucket, its lead would seem to be noise.
  Overlapping job(8, 10);
  for (int i = 0; i < 60; ++i) {
    std::vector<double> own_ms(8, 990 + i * 7 % 5);
    own_ms[3] *= 0.96;
    job.Iterate(own_ms);
  }
  EXPECT_LT(job.excess(3), -0.02);
  EXPECT_GT(job.excess(3), -0.06);
}

TEST(LatenessTest, ALagCountsOnceDespiteStallsOfAllRanks) {
  // Rank 3 lags in every bucket. All ranks stall in turn, for 280 ms each.
  Overlapping job(8, 10);
  for (size_t i = 0; i < 60; ++i) {
    std::vector<double> own_ms(8, 990.0 + static_cast<double>(i * 7 % 5));
    own_ms[3] *= 1.04;
    job.Stall(i % 8, 280);
    job.Iterate(own_ms);
  }
  EXPECT_GT(job.excess(3), 0.02);
  EXPECT_LT(job.excess(3), 0.06);
}

TEST(LatenessTest, ALagCountsOnceIfTwoKindsOfOperationsAlternate) {
  Overlapping job(8, 10, /*kinds=*/2);
  for (int i = 0; i < 60; ++i) {
    std::vector<double> own_ms(8, 990 + i * 7 % 5);
    own_ms[3] *= 1.04;
    job.Iterate(own_ms);
  }
  EXPECT_GT(job.excess(3), 0.02);
  EXPECT_LT(job.excess(3), 0.06);
}

TEST(LatenessTest, ALagCountsOnceInBackToBackOperations) {
  // Each window has three back-to-back operations. Rank 3 is 40 ms late in the first one, and
  // computes for 30 ms, the length of the transfer, before each of the others.
  Lateness lateness(8, {});
  RoleBaseline baseline;
  std::vector<uint64_t> blocked(8);
  uint64_t at_ms = 1000;
  uint64_t sequence = 0;
  for (uint64_t window = 0; window < 40; ++window) {
    at_ms += 900 + window % 3;
    for (uint64_t k = 0; k < 3; ++k) {
      const uint64_t lead_ms = k == 0 ? 40 : 30;
      GatheredOperation operation;
      operation.kind = CollectiveKind::kAllReduce;
      operation.sequence = sequence++;
      operation.bytes = 1 << 20;
      operation.count = 8;
      for (uint32_t i = 0; i < 8; ++i) {
        const uint64_t start = (at_ms + (i == 3 ? lead_ms : 0)) * kMs;
        const uint64_t stop = (at_ms + lead_ms + 30) * kMs;
        operation.samples.push_back({start, stop, blocked[i] + 1, 1});
        blocked[i] += stop - start;
      }
      at_ms += lead_ms + 30;
      lateness.Add(operation, 1000.0 * kMs, {}, true, baseline);
    }
  }
  EXPECT_NEAR(lateness.tracks()[3].excess(), 0.04, 0.01) << "not the sum, 10 %";
}

TEST(LatenessTest, StagesAreComparedWithTheirOwnPast) {
  Lateness lateness(4, {});
  RoleBaseline baseline;
  uint64_t at = 1000 * kMs;
  std::vector<uint64_t> blocked(4);
  auto iterate = [&](uint64_t last_stage_ms, uint64_t sequence) {
    GatheredOperation operation;
    operation.kind = CollectiveKind::kAllReduce;
    operation.sequence = sequence;
    operation.bytes = 1024;
    operation.count = 4;
    const uint64_t stop = at + (last_stage_ms + 5) * kMs;
    for (uint32_t i = 0; i < 4; ++i) {
      const uint64_t start = at + (i == 3 ? last_stage_ms : 900 + sequence % 3) * kMs;
      operation.samples.push_back({start, stop, blocked[i] + 1, 1});
      blocked[i] += stop - start;
    }
    at = stop;
    lateness.Add(operation, 1000.0 * kMs, {}, false, baseline);
  };
  uint64_t sequence = 0;
  for (; sequence < 60; ++sequence) iterate(1000 + sequence % 2, sequence);
  EXPECT_EQ(lateness.tracks()[3].late_count(20), 0U) << "its work differs";
  EXPECT_EQ(lateness.tracks()[3].very_late_count(), 0U);
  EXPECT_FALSE(lateness.suspicious());
  for (; sequence < 90; ++sequence) iterate(1100 + sequence % 2, sequence);
  EXPECT_GE(lateness.tracks()[3].slower_count(20), 14U);
}

TEST(LatenessTest, WindowsCoverTheLongPartsOfTheProgram) {
  // Fourteen seconds of computing, then four operations a quarter of a second apart. The duration
  // of a step is not reported. One of four ranks is 10 % slower.
  Lateness lateness(4, {});
  RoleBaseline baseline;
  uint64_t at = 1000 * kMs;
  std::vector<uint64_t> blocked(4);
  uint64_t sequence = 0;
  for (int i = 0; i < 60; ++i) {
    for (uint32_t k = 0; k < 4; ++k) {
      GatheredOperation operation;
      operation.kind = CollectiveKind::kAllReduce;
      operation.sequence = sequence++;
      operation.bytes = 1024;
      operation.count = 4;
      const uint64_t own = k == 0 ? 14'000 : 250;
      const uint64_t stop = at + (own * 11 / 10 + 5) * kMs;
      for (uint32_t rank = 0; rank < 4; ++rank) {
        const uint64_t start = at + (rank == 2 ? own * 11 / 10 : own) * kMs;
        operation.samples.push_back({start, stop, blocked[rank] + 1, 1});
        blocked[rank] += stop - start;
      }
      at = stop;
      lateness.Add(operation, 0, {}, true, baseline);
    }
  }
  EXPECT_GT(lateness.window_ns(), 10e9);
  EXPECT_GT(lateness.tracks()[2].excess(), 0.05);
}

TEST(StepsTest, ALongStepCountsAsTheRanksOwnTime) {
  Steps steps(4, {});
  RoleBaseline baseline;
  auto add = [&](uint64_t from, uint64_t to, uint64_t slow_ms) {
    for (uint64_t step = from; step < to; ++step) {
      for (uint32_t rank = 0; rank < 4; ++rank) {
        if (rank == 1 && step % 10 == 3) continue;  // a lost report
        steps.Add(rank, {step, (rank == 2 ? slow_ms : 1000 + step % 3) * kMs}, kNow);
      }
      while (auto complete = steps.Take(kNow + std::chrono::minutes(2))) {
        steps.lateness().Add(*complete, 1000.0 * kMs, {}, true, baseline);
      }
    }
  };
  add(1, 60, 1000);
  EXPECT_FALSE(steps.lateness().suspicious());
  add(60, 100, 1100);
  EXPECT_TRUE(steps.lateness().suspicious());
  EXPECT_NEAR(steps.lateness().tracks()[2].excess(), 0.1, 0.02);
  EXPECT_LT(steps.lateness().tracks()[1].late_count(20), 14U);
}

TEST(StepsTest, ASlowRankIsComparedAlthoughItFallsBehind) {
  Steps steps(4, {});
  RoleBaseline baseline;
  std::array<uint64_t, 4> done{};
  // Nothing makes the ranks wait for each other. In the end, rank 2 is 25 s behind.
  for (uint64_t at_ms = 0; at_ms < 150'000; at_ms += 100) {
    const auto now = kNow + std::chrono::milliseconds(at_ms);
    for (uint32_t rank = 0; rank < 4; ++rank) {
      const uint64_t slow_from = 40;
      const bool slow = rank == 2 && done[rank] >= slow_from;
      const uint64_t ends_ms =
          1000 * (done[rank] + 1) + (slow ? 300 * (done[rank] - slow_from) : 0);
      if (at_ms < ends_ms) continue;
      steps.Add(rank, {++done[rank], (slow ? 1300 : 1000 + done[rank] % 3) * kMs}, now);
    }
    while (auto complete = steps.Take(now)) {
      steps.lateness().Add(*complete, 1000.0 * kMs, {}, true, baseline);
    }
  }
  EXPECT_GT(done[0], done[2] + 20);
  EXPECT_EQ(steps.lateness().tracks()[2].late_count(20), 20U);
  EXPECT_NEAR(steps.lateness().tracks()[2].excess(), 0.3, 0.02);
}

/// From window 20 on, one of `members` needs 9 ms more, which is 0.8 % of an iteration. Apart from
/// that, the members differ little.
bool FindsSmallChange(uint32_t members, const std::vector<uint64_t>& bytes = {}) {
  Meeting meeting(members);
  std::vector<uint64_t> own(members);
  for (uint64_t window = 0; window < 160; ++window) {
    for (uint64_t i = 0; i < members; ++i) own[i] = 990 + (window * 7 + i * 5) % 3;
    if (window >= 20) own[1] += 9;
    meeting.Iterate(own, bytes);
  }
  EXPECT_EQ(meeting.track(1).late_count(20), 0U);
  return meeting.suspicious();
}

TEST(LatenessTest, ASmallChangeIsFoundAmongManyMembers) {
  EXPECT_TRUE(FindsSmallChange(40));
  EXPECT_FALSE(FindsSmallChange(8));
}

TEST(LatenessTest, ThePastIsNotComparedIfWorkDiffers) {
  Meeting meeting(4);
  const std::vector<uint64_t> bytes = {10U << 20U, 11U << 20U, 12U << 20U, 13U << 20U};
  for (int i = 0; i < 40; ++i) meeting.Iterate({500, 550, 600, 650}, bytes);
  for (int i = 0; i < 20; ++i) meeting.Iterate({515, 550, 600, 650}, bytes);
  EXPECT_EQ(meeting.track(0).slower_count(20), 0U);
}

TEST(SlownessTest, TheSpreadOfFewRanksIsWeightedWithTheUsualOne) {
  struct Case {
    size_t members;
    double shown;
    double least;
    double most;
  };
  constexpr Case kCases[] = {
      {2, 0.001, 0.0035, 0.0045}, {7, 0.002, 0.0033, 0.0034},    {7, 0.006, 0.006, 0.006},
      {64, 0.006, 0.0058, 0.006}, {10'000, 0.006, 0.006, 0.006}, {10'000, 0.001, 0.003, 0.003},
  };
  for (const Case& wanted : kCases) {
    std::vector<double> excesses(wanted.members, wanted.shown);
    const double spread = LastingSpread(excesses);
    EXPECT_GE(spread, wanted.least - 5e-6) << wanted.members << " show " << wanted.shown;
    EXPECT_LE(spread, wanted.most + 5e-6) << wanted.members << " show " << wanted.shown;
  }
}

TEST(SlownessTest, TheUpperQuantileOfTheSpreadCounts) {
  // A third of the ranks has a large excess, which the median ignores.
  std::vector<double> excesses = {0.004, 0.004, 0.004, 0.004, 0.004, 0.004, 0.03, 0.03, 0.03};
  EXPECT_GT(LastingSpread(excesses), 0.009);
}

TEST(SlownessTest, FrequentStallsExceedTheRateOfTheOthers) {
  struct Case {
    int very_late;           // of the last 64 windows of one of 8 ranks
    uint64_t all_very_late;  // of all windows of all ranks
    uint64_t all_windows;
    bool frequent;
  };
  constexpr Case kCases[] = {
      {9, 9, 1'322, false},   // too few windows of the others
      {20, 20, 1'322, true},  //
      {9, 9, 20'000, true},   // enough windows of the others
      {9, 1'009, 20'000, false}, {30, 1'030, 20'000, true},
  };
  for (const Case& wanted : kCases) {
    TrackOf track;
    track.Add(136, 0).Add(wanted.very_late, 0.06).Add(64 - wanted.very_late, 0);
    RoleBaseline baseline;
    baseline.very_late = {wanted.all_very_late};
    baseline.windows = wanted.all_windows;
    EXPECT_EQ(FindFrequentStalls(*track, {&*track, 1}, baseline, 8).has_value(), wanted.frequent)
        << wanted.very_late << ", of all " << wanted.all_very_late << " in " << wanted.all_windows;
  }
}

TEST(SlownessTest, AChangeOfTwoMembersIsShared) {
  for (const double other : {0.0, 0.02, 0.08}) {
    TrackOf slower;
    TrackOf member;
    slower.Add(40, 0).Add(20, 0.06);
    member.Add(40, 0.1).Add(20, 0.1 + other);
    const std::array<Track, 2> members = {*slower, *member};
    EXPECT_EQ(IsSharedChange(members[0], members), other >= 0.03) << other;
  }
}

TEST(SlownessTest, ASharedChangeOfRanksThatWereLateBeforeIsADrift) {
  for (const double before : {0.0, 0.05}) {
    for (const double other : {0.0, 0.04}) {
      TrackOf slower;
      TrackOf member;
      slower.Add(40, before).Add(20, before + 0.04);
      member.Add(40, before).Add(20, before + other);
      const std::array<Track, 2> members = {*slower, *member};
      EXPECT_EQ(IsSharedDrift(members[0], members), before > 0 && other > 0) << before << other;
    }
  }
}

TEST(SlownessTest, AmongFewOthersTheirStandardDeviationCounts) {
  const std::array<double, 7> alike = {-0.003, 0.002, 0.004, -0.008, 0.001, 0.006, 0.002};
  std::array<double, 7> wide = alike;
  for (double& excess : wide) excess *= 5;
  EXPECT_TRUE(IsFarBehind(0.05, alike, 1));
  EXPECT_FALSE(IsFarBehind(0.03, alike, 1));
  EXPECT_FALSE(IsFarBehind(0.05, wide, 1)) << "these GPUs differ by 2 %";
  EXPECT_FALSE(IsFarBehind(0.05, alike, std::sqrt(2.0))) << "of pairs, the excess must be larger";
  EXPECT_TRUE(IsFarBehind(0.09, alike, std::sqrt(2.0)));
  EXPECT_FALSE(IsFarBehind(0.07, wide, std::sqrt(2.0)));
  EXPECT_FALSE(IsFarBehind(0.03, {}, 1)) << "without others the usual deviation counts";
}

TEST(SlownessTest, AChangeIsCommonIfOneInFourMembersHasIt) {
  for (const size_t others : {0U, 1U, 2U, 3U, 16U}) {
    for (const size_t members : {4U, 8U, 16U, 128U}) {
      if (others >= members) continue;
      std::vector<Track> tracks;
      for (size_t i = 0; i < members; ++i) {
        TrackOf track;
        track.Add(40, 0).Add(20, i <= others ? 0.05 : 0);
        tracks.push_back(*track);
      }
      EXPECT_EQ(IsCommonChange(tracks[0], tracks), others >= std::clamp<size_t>(members / 4, 2, 16))
          << others << " others of " << members;
    }
  }
}

TEST(SlownessTest, RanksThatStallEquallyOftenHaveACommonCause) {
  RoleBaseline baseline;
  baseline.very_late = {60};
  baseline.windows = 20'000;
  for (const bool other_stalls : {false, true}) {
    std::vector<Track> members;
    for (int i = 0; i < 8; ++i) {
      TrackOf track;
      track.Add(100, 0);
      const double late = i == 0 || (i == 1 && other_stalls) ? 0.06 : 0;
      for (int burst = 0; burst < 10; ++burst) track.Add(2, late).Add(4, 0);
      members.push_back(*track);
    }
    EXPECT_EQ(FindFrequentStalls(members[0], members, baseline, 8).has_value(), !other_stalls);
  }
}

TEST(LatenessTest, AWindowOfShortIterationsHoldsSeveralOfThem) {
  Lateness lateness(4, {});
  RoleBaseline baseline;
  for (uint64_t i = 0; i < 400; ++i) {
    GatheredOperation operation;
    operation.kind = CollectiveKind::kAllReduce;
    operation.sequence = i;
    operation.count = 4;
    for (uint32_t rank = 0; rank < 4; ++rank) {
      const uint64_t start = (20 * i + 20) * kMs;
      operation.samples.push_back({start, start + kMs, i * kMs + 1, i + 1});
    }
    lateness.Add(operation, 20e6, {}, true, baseline);
  }
  EXPECT_EQ(lateness.window_ns(), 60e6);
}

TEST(SlownessTest, FrequentStallsExceedTheRateOfTheSameCommunicator) {
  RoleBaseline baseline;
  baseline.very_late = {100};
  baseline.windows = 20'000;
  for (const bool other_stalls : {false, true}) {
    TrackOf stalls;
    TrackOf other;
    stalls.Add(100, 0);
    other.Add(100, 0);
    for (int i = 0; i < 10; ++i) {
      stalls.Add(2, 0.06).Add(4, 0);
      other.Add(4, 0).Add(2, other_stalls && i % 5 < 2 ? 0.06 : 0);
    }
    const std::array<Track, 2> members = {*stalls, *other};
    EXPECT_EQ(FindFrequentStalls(members[0], members, baseline, 8).has_value(), !other_stalls);
  }
}

TEST(SlownessTest, ARankThatIsLateInMostWindowsDoesNotStall) {
  RoleBaseline baseline;
  baseline.windows = 20'000;
  for (const int late : {30, 70}) {  // of 100
    TrackOf track;
    track.Add(8, 0);
    for (int i = 0; i < 14; ++i) track.Add(late / 10, 0.06).Add(10 - late / 10, 0);
    EXPECT_EQ(FindFrequentStalls(*track, {&*track, 1}, baseline, 8).has_value(), late == 30);
  }
}

}  // namespace
}  // namespace holdfast::detect
