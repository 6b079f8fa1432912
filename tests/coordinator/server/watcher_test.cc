// The watcher of telemetry, with a clock that the test sets and a detector that works.
#include "coordinator/server/watcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace holdfast::coord {
namespace {
using namespace std::chrono_literals;

/// A clock that the test moves. Another thread reads it.
class SharedClock : public Clock {
 public:
  TimePoint Now() const override {
    const TimePoint now(Duration(now_ns_.load()));
    if (std::this_thread::get_id() != test_) {
      ++reads_;
      reads_.notify_all();
    }
    return now;
  }
  int64_t WallNanos() const override { return now_ns_; }
  void SleepFor(Duration duration) override { now_ns_ += duration.count(); }
  /// Returns when the other thread has read the clock.
  void AwaitReader() const { reads_.wait(reads_); }

 private:
  const std::thread::id test_ = std::this_thread::get_id();
  std::atomic<int64_t> now_ns_{3'600'000'000'000};
  mutable std::atomic<uint64_t> reads_{0};
};

class WatcherTest : public ::testing::Test {
 protected:
  WatcherTest() {
    options_.hang_after = 2s;
    Load();
    for (const char* node : {"n0", "n1"}) Attach(node);
    watcher_ = std::make_unique<Watcher>([this](FaultDetected fault) { Note(std::move(fault)); },
                                         attendance_, options_, clock_);
  }
  /// Loads the state, in which the job is known and no agent is attached.
  void Load() {
    Records records;
    LineageRecord& lineage = records.lineages.emplace_back();
    lineage.job = "lm";
    lineage.incarnation = Incarnation{1};
    lineage.world = 2;
    attendance_.Reset(records);
  }
  void Attach(const std::string& node) {
    NodeAttached attached;
    attached.node = node;
    attached.agent_start = 7;
    attendance_.Update(attached, {});
  }
  /// Rank 0 is on n0 and rank 1 on n1. Each digest reports the next step.
  void SendDigest(const std::string& node) {
    coordinator::Digest digest;
    digest.set_job("lm");
    digest.set_incarnation(1);
    digest.set_world(2);
    digest.set_number(++number_);
    digest.set_taken_ns(static_cast<uint64_t>(clock_.WallNanos()));
    coordinator::ObservedRank* rank = digest.add_ranks();
    rank->set_rank(node == "n0" ? 0 : 1);
    rank->set_alive(true);
    rank->set_process_state('R');
    rank->set_step(number_);
    const Status status = watcher_->Observe(node, 7, digest);
    ASSERT_TRUE(status.ok()) << status.ToString();
  }
  /// Moves the clock by less than a pause, and waits for the next evaluation.
  void Step() {
    clock_.SleepFor(900ms);
    clock_.AwaitReader();
  }
  void Note(FaultDetected fault) {
    MutexLock lock(mutex_);
    faults_.push_back(fault.what);
  }
  std::vector<std::string> Faults() {
    MutexLock lock(mutex_);
    return faults_;
  }

  SharedClock clock_;
  detect::DetectorOptions options_;
  Attendance attendance_;
  uint64_t number_ = 0;
  Mutex mutex_;
  std::vector<std::string> faults_;
  std::unique_ptr<Watcher> watcher_;
};

/// After an outage of the store, the agents attach one after the other. Until all had the time to,
/// the silence of a node is no sign of a fault.
TEST_F(WatcherTest, AgentsHaveTimeToAttachAfterTheStateWasLoaded) {
  for (int i = 0; i < 2; ++i) {
    SendDigest("n0");
    SendDigest("n1");
    Step();
  }
  clock_.SleepFor(55s);  // no agent reaches a leader
  for (int i = 0; i < 2; ++i) Step();
  Load();
  Attach("n0");
  for (int i = 0; i < 3; ++i) {
    SendDigest("n0");
    Step();
  }
  Attach("n1");
  for (int i = 0; i < 4; ++i) {
    SendDigest("n0");
    SendDigest("n1");
    Step();
  }
  EXPECT_THAT(Faults(), ::testing::IsEmpty());

  // Later the same silence is reported.
  for (int i = 0; i < 100 && Faults().empty(); ++i) {
    SendDigest("n0");
    Step();
  }
  EXPECT_THAT(Faults(), ::testing::Contains(::testing::HasSubstr("rank 1 on n1")));
}

}  // namespace
}  // namespace holdfast::coord
