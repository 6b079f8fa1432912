#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "coordinator/state/run_records.h"

namespace holdfast::coord {

/// Runs restart.command with /bin/sh, each time in a new session, and reports how it ended. The
/// environment describes the incident: HOLDFAST_JOB, HOLDFAST_INCIDENT (its number), HOLDFAST_KIND,
/// HOLDFAST_WHAT, and HOLDFAST_RANKS and HOLDFAST_NODES, separated by commas. Thread-safe.
class RestartCommand {
 public:
  /// `how` is a predicate: "ended with exit code 1".
  using Ended = std::function<void(uint64_t incident, bool ok, std::string how)>;

  /// A command that takes longer than `timeout` is killed, with its process group. `clock`
  /// outlives the object.
  RestartCommand(std::string command, std::chrono::milliseconds timeout, const Clock& clock);
  ~RestartCommand();

  /// Starts the thread, which calls `ended`. Runs commands that were requested before.
  void Start(Ended ended);
  /// Ends the thread. Running commands continue, and `ended` is not called any more.
  void Stop();
  /// Requests a run of the command; returns at once.
  void Run(const IncidentRecord& incident);

 private:
  struct Process {
    uint64_t incident = 0;
    int pid = 0;
    Clock::TimePoint kill_at;
    bool killed = false;
  };
  void Loop();
  void Spawn(const IncidentRecord& incident);
  /// Returns true once the process has ended and `ended` was called. Kills it at its timeout.
  bool Reap(Process& process);

  const std::string command_;
  const std::chrono::milliseconds timeout_;
  const Clock& clock_;
  Ended ended_;
  std::vector<Process> processes_;  // only the thread accesses it
  Mutex mutex_;
  CondVar changed_;
  std::deque<IncidentRecord> pending_ HOLDFAST_GUARDED_BY(mutex_);
  bool stopping_ HOLDFAST_GUARDED_BY(mutex_) = false;
  Thread thread_;
};

}  // namespace holdfast::coord
