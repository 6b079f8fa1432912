#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "agent/workers/worker.h"
#include "agent/workers/worker_files.h"
#include "storage/base/clock.h"
#include "storage/base/fd.h"
#include "storage/base/mutex.h"
#include "storage/base/status.h"

namespace holdfast::agent {

enum class WorkerPhase { kRunning, kEnded, kStuck };

struct WorkerStatus {
  std::string job;
  std::string run_id;
  Rank rank;
  WorkerPhase phase = WorkerPhase::kRunning;
  pid_t pid = 0;  // 0: its shim has not yet said
  WorkerExit exit;
};

struct WorkerManagerOptions {
  std::string folder;        // for the workers' folders; one boot of the machine
  std::string log_folder;    // <job>/<run id>/rank-<r>.log
  std::string agent_socket;  // that their clients connect to
  std::string shim;          // the program
  int64_t kill_timeout_ms = 10'000;
  uint32_t worker_umask = 022;
};

/// Makes what runs on this node what should run: stops workers of launches that are over, then
/// starts those that are wanted, and watches them. What an agent before this one started is taken
/// over; of a job for which no word has come yet, everything is left as it is. Thread-safe.
class WorkerManager {
 public:
  /// `changed` is called, from its thread, whenever Workers() would say something new.
  static Result<std::unique_ptr<WorkerManager>> Open(WorkerManagerOptions options,
                                                     std::function<void()> changed, Clock& clock);
  /// The workers stay.
  ~WorkerManager();

  /// Replaces what was wanted of the job.
  void Want(WorkersWanted wanted);
  std::vector<WorkerStatus> Workers();
  /// What a worker said from `offset` on, at most `bytes_max` of it; also after its end, while its
  /// log is kept. NotFound.
  Result<std::string> ReadLog(const std::string& job, const std::string& run_id, Rank rank,
                              uint64_t offset, size_t bytes_max) const;

 private:
  struct Worker {
    WorkerSpec spec;
    std::string folder;
    std::optional<WorkerPids> pids;
    pid_t shim = 0;    // while it is our child
    UniqueFd shim_fd;  // readable when the shim has ended
    WorkerPhase phase = WorkerPhase::kRunning;
    WorkerExit exit;
    std::optional<Clock::TimePoint> term_at;
    std::optional<Clock::TimePoint> kill_at;
  };

  WorkerManager(WorkerManagerOptions options, std::function<void()> changed, Clock& clock);
  std::string LogPath(const std::string& job, const std::string& run_id, Rank rank) const;
  void Adopt();
  void Run();
  /// How long nothing happens by itself.
  int StepAll(bool* changed) HOLDFAST_REQUIRES(mutex_);
  bool Refresh(Worker& worker) HOLDFAST_REQUIRES(mutex_);
  bool Stop(Worker& worker, int64_t grace_ms) HOLDFAST_REQUIRES(mutex_);
  bool StartMissing(const WorkersWanted& wanted) HOLDFAST_REQUIRES(mutex_);
  Status Start(const WorkersWanted& wanted, uint32_t local_rank) HOLDFAST_REQUIRES(mutex_);
  Status Spawn(Worker& worker) HOLDFAST_REQUIRES(mutex_);
  void PruneLogs(const std::string& job) HOLDFAST_REQUIRES(mutex_);

  const WorkerManagerOptions options_;
  const std::function<void()> changed_;
  Clock& clock_;
  UniqueFd wake_;  // an eventfd

  Mutex mutex_;
  std::map<std::string, WorkersWanted> wanted_ HOLDFAST_GUARDED_BY(mutex_);
  std::vector<Worker> workers_ HOLDFAST_GUARDED_BY(mutex_);
  bool stopping_ HOLDFAST_GUARDED_BY(mutex_) = false;

  std::thread thread_;
};

}  // namespace holdfast::agent
