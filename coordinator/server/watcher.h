#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "coordinator/api/coordinator.pb.h"
#include "coordinator/detect/detector.h"
#include "coordinator/restart/run_events.h"
#include "coordinator/server/attendance.h"
#include "coordinator/server/rank_readings.h"
#include "storage/collective/collective.h"

namespace holdfast::coord {

/// Passes agents' telemetry to one detector per job and publishes each fault once. It publishes a
/// hang, suspected or certain, repeatedly while it lasts, since the action depends on its age.
/// Nothing is stored: after a restart of the coordinator the faults are detected again. The watcher
/// has its own thread. Threads: any.
class Watcher {
 public:
  /// The watcher's thread calls `publish`. `attendance` outlives the watcher.
  Watcher(std::function<void(FaultDetected)> publish, const Attendance& attendance,
          const detect::DetectorOptions& options, Clock& clock);
  ~Watcher();

  /// Ends the thread: nothing is published afterwards, but calls are still accepted.
  void Stop();
  /// Accepts a node's telemetry digest of one job. Ignores implausible values. Ignores the whole
  /// digest if it is not of the newest incarnation of a job that ranks have joined. InvalidArgument
  /// for impossible names or worlds. Fenced: the agent is not attached. ResourceExhausted: too many
  /// jobs.
  Status Observe(const std::string& node, uint64_t agent_start, const coordinator::Digest& digest);
  struct Counts {
    uint64_t jobs = 0;        // watched now
    uint64_t digests = 0;     // accepted
    uint64_t faults = 0;      // published
    uint64_t suspicions = 0;  // of hangs, published
    uint64_t suspected = 0;   // hangs, now
  };
  Counts counts();
  /// Returns the last reading of each rank, by job.
  std::map<std::string, std::vector<ui::RankReading>> Readings();
  /// Returns the request for samples of the node's ranks, if there is one. Each is returned once
  /// per node.
  std::optional<coordinator::SampleRequest> SamplesFor(const std::string& node,
                                                       const std::string& job);

 private:
  /// Members of a communicator, collected from its ranks: each may report only its own index.
  struct Members {
    CommunicatorRole role = CommunicatorRole::kUnknown;
    std::vector<Rank> ranks;  // by index; kUnknownRank
    uint32_t known = 0;
  };
  struct Job {
    Incarnation incarnation;
    uint32_t world = 0;
    std::unique_ptr<detect::Detector> detector;
    RankReadings readings;
    std::map<CommunicatorId, Members> communicators;
    std::map<std::string, int64_t> since_step_ms;  // by node: the smallest of its ranks
    std::set<std::string> published;
    uint64_t step = 0;              // the newest of any rank
    uint64_t suspected = 0;         // hangs, now
    uint64_t longest_pause_ns = 0;  // that ended on its own, also in earlier incarnations
    Clock::TimePoint hang_published_at;
    uint64_t sampling = 0;                    // number of the newest request for samples
    std::map<std::string, uint64_t> sampled;  // by node: the request that it has
    Clock::TimePoint sampled_at;
    Clock::TimePoint last_digest_at;
  };

  void Run();
  bool IsSettling(Clock::TimePoint now) HOLDFAST_REQUIRES(mutex_);
  void Evaluate(const std::string& name, Job& job, std::vector<FaultDetected>* found)
      HOLDFAST_REQUIRES(mutex_);
  static detect::Digest Convert(const std::string& node, uint64_t agent_start,
                                const coordinator::Digest& digest, Job& job);
  static FaultDetected FaultOf(const detect::Verdict& verdict, const std::string& name,
                               const Job& job);
  void Publish(const detect::Verdict& verdict, const std::string& name, bool publish_hangs,
               Job& job, std::vector<FaultDetected>* found) HOLDFAST_REQUIRES(mutex_);
  static void Learn(const Communicator& communicator, Rank rank, Job& job, detect::Digest* out);

  const std::function<void(FaultDetected)> publish_;
  const Attendance& attendance_;
  const detect::DetectorOptions options_;
  Clock& clock_;
  Mutex mutex_;
  CondVar changed_;
  std::map<std::string, Job> jobs_ HOLDFAST_GUARDED_BY(mutex_);
  Counts counts_ HOLDFAST_GUARDED_BY(mutex_);  // without `jobs` and `suspected`
  Clock::TimePoint last_evaluation_ HOLDFAST_GUARDED_BY(mutex_);
  Clock::TimePoint settled_at_ HOLDFAST_GUARDED_BY(mutex_);
  uint64_t loads_ HOLDFAST_GUARDED_BY(mutex_);  // of the attendance, at the last evaluation
  bool stopping_ HOLDFAST_GUARDED_BY(mutex_) = false;
  Thread thread_;
};

}  // namespace holdfast::coord
