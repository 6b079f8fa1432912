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
#include "base/clock.h"
#include "base/cores.h"
#include "base/fd.h"
#include "base/mutex.h"
#include "base/status.h"
#include "coordinator/contract/directives.h"
#include "coordinator/contract/reports.h"

namespace holdfast::agent {

struct WorkerManagerOptions {
  std::string folder;        // of the workers' folders; valid for one boot of the machine
  std::string log_folder;    // <job>/<run id>/rank-<r>.log
  std::string agent_socket;  // for the workers' clients
  std::string shim;          // path of holdfast-shim
  int64_t kill_timeout_ms = 10'000;
  uint32_t worker_umask = 022;
  std::optional<CoreSettings> worker_cores;  // absent: those of this process
  /// User of the workers whose run names none, since an earlier version recorded it. Empty: such
  /// workers are refused.
  std::string default_user;
};

/// Makes the running workers of this node match the wanted ones: stops workers of earlier launches,
/// then starts the wanted ones, and monitors them. Adopts the workers that an earlier agent process
/// started. The workers of a job without a SetWanted() call stay as they are. Thread-safe.
class WorkerManager {
 public:
  /// Adopts existing workers and starts the manager's thread, which calls `changed` after each
  /// change of what Workers() returns.
  static Result<std::unique_ptr<WorkerManager>> Open(WorkerManagerOptions options,
                                                     std::function<void()> changed, Clock& clock);
  /// Stops the thread; the workers keep running.
  ~WorkerManager();

  /// Replaces the wanted workers of a job.
  void SetWanted(SetWorkers wanted);
  /// Returns the state of all workers.
  std::vector<WorkerState> Workers();
  /// Returns at most `bytes_max` bytes of a worker's log from `offset` on; also after the worker's
  /// end, while the log is kept. NotFound: there is no such log.
  Result<std::string> ReadLog(const std::string& job, const std::string& run_id, Rank rank,
                              uint64_t offset, size_t bytes_max) const;

 private:
  struct Worker {
    WorkerSpec spec;
    std::string folder;
    std::optional<WorkerPids> pids;
    pid_t shim = 0;    // not 0: the shim is a child of this process
    UniqueFd shim_fd;  // pidfd: readable when the shim has ended
    WorkerPhase phase = WorkerPhase::kRunning;
    WorkerExit exit;
    std::optional<Clock::TimePoint> term_at;
    std::optional<Clock::TimePoint> kill_at;
  };

  WorkerManager(WorkerManagerOptions options, std::function<void()> changed, Clock& clock);
  std::string LogPath(const std::string& job, const std::string& run_id, Rank rank) const;
  void Adopt();
  void Run();
  /// Advances all workers. Returns the milliseconds until the next call is due.
  int StepAll(bool* changed) HOLDFAST_REQUIRES(mutex_);
  bool Refresh(Worker& worker) HOLDFAST_REQUIRES(mutex_);
  bool Stop(Worker& worker, int64_t grace_ms) HOLDFAST_REQUIRES(mutex_);
  bool StartMissing(const SetWorkers& wanted) HOLDFAST_REQUIRES(mutex_);
  Status Start(const SetWorkers& wanted, uint32_t local_rank) HOLDFAST_REQUIRES(mutex_);
  Status Spawn(Worker& worker) HOLDFAST_REQUIRES(mutex_);
  Result<WorkerUser> UserOf(const SetWorkers& wanted) const;
  /// Makes the folder of a launch's logs, which belongs to the user.
  Status MakeLogs(const std::string& job, const std::string& logs, const WorkerUser& user) const;
  void PruneLogs(const std::string& job) HOLDFAST_REQUIRES(mutex_);

  const WorkerManagerOptions options_;
  const std::function<void()> changed_;
  Clock& clock_;
  UniqueFd wake_;  // an eventfd

  Mutex mutex_;
  std::map<std::string, SetWorkers> wanted_ HOLDFAST_GUARDED_BY(mutex_);
  std::vector<Worker> workers_ HOLDFAST_GUARDED_BY(mutex_);
  bool stopping_ HOLDFAST_GUARDED_BY(mutex_) = false;

  std::thread thread_;
};

}  // namespace holdfast::agent
