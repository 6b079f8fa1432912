#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/api/coordinator.pb.h"
#include "coordinator/detect/detector.h"
#include "coordinator/restart/run_events.h"
#include "coordinator/server/attendance.h"
#include "storage/base/clock.h"
#include "storage/base/mutex.h"

namespace holdfast::coord {

/// Watches all jobs: gives what agents observe to a detector a job, and says each fault once; a
/// hang, suspected or found, again and again while it lasts, since what is done about it depends on
/// how long. Nothing of
/// it is stored: after a restart it is observed again. Its own thread; calls from any.
class Watcher {
 public:
  /// `say` is called from the watcher's thread. `attendance` outlives the watcher.
  Watcher(std::function<void(FaultFound)> say, const Attendance& attendance,
          const detect::DetectorOptions& options, Clock& clock);
  ~Watcher();

  /// Nothing is said afterwards; calls are still taken.
  void Stop();
  /// What a node says of one job. InvalidArgument for what cannot be; nonsense inside is dropped,
  /// and so is all of it but for the newest incarnation of a job that ranks have joined. Fenced:
  /// the agent is not attached.
  Status Observe(const std::string& node, uint64_t agent_start, const coordinator::Digest& digest);
  struct Counts {
    uint64_t jobs = 0;        // watched now
    uint64_t digests = 0;     // taken
    uint64_t faults = 0;      // said
    uint64_t suspicions = 0;  // of hangs, said
    uint64_t suspected = 0;   // of hangs, now
  };
  Counts counts();
  /// The operations whose transfers the ranks of a job should tell, 0: none; each node is asked
  /// once.
  uint32_t SamplesFor(const std::string& node, const std::string& job);

 private:
  /// A communicator that each member knows only its own place in, until all have told.
  struct Members {
    detect::Role role = detect::Role::kUnknown;
    std::vector<uint32_t> ranks;  // by index; kUnknownRank
    uint32_t known = 0;
  };
  struct Job {
    Incarnation incarnation;
    uint32_t world = 0;
    std::unique_ptr<detect::Detector> detector;
    std::map<uint64_t, Members> communicators;
    std::map<std::string, int64_t> since_step_ms;  // by node: the freshest of its ranks
    std::set<std::string> said;
    uint64_t step = 0;              // the newest of any rank
    uint64_t suspected = 0;         // hangs, now
    uint64_t longest_pause_ns = 0;  // that ended by itself, also of incarnations before
    Clock::TimePoint hang_said_at;
    uint64_t sampling = 0;                    // counts requests
    std::map<std::string, uint64_t> sampled;  // by node: the request it has
    Clock::TimePoint sampled_at;
    Clock::TimePoint heard;
  };

  void Run();
  bool IsPatient(Clock::TimePoint now) HOLDFAST_REQUIRES(mutex_);
  void Evaluate(const std::string& name, Job& job, std::vector<FaultFound>* found)
      HOLDFAST_REQUIRES(mutex_);
  static detect::Digest Convert(const std::string& node, uint64_t agent_start,
                                const coordinator::Digest& digest, Job& job);
  static FaultFound FaultOf(const detect::Verdict& verdict, const std::string& name,
                            const Job& job);
  void Say(const detect::Verdict& verdict, const std::string& name, bool say_hangs, Job& job,
           std::vector<FaultFound>* found) HOLDFAST_REQUIRES(mutex_);
  static void Learn(const coordinator::ObservedCommunicator& told, uint32_t rank, Job& job,
                    detect::Digest* out);

  const std::function<void(FaultFound)> say_;
  const Attendance& attendance_;
  const detect::DetectorOptions options_;
  Clock& clock_;
  Mutex mutex_;
  CondVar changed_;
  std::map<std::string, Job> jobs_ HOLDFAST_GUARDED_BY(mutex_);
  Counts counts_ HOLDFAST_GUARDED_BY(mutex_);  // but for the jobs
  Clock::TimePoint looked_ HOLDFAST_GUARDED_BY(mutex_);
  Clock::TimePoint patient_until_ HOLDFAST_GUARDED_BY(mutex_);
  bool stopping_ HOLDFAST_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace holdfast::coord
