#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/state/run_records.h"
#include "storage/base/clock.h"
#include "storage/base/mutex.h"

namespace holdfast::coord {

/// Runs restart.command by /bin/sh, each in a session of its own, and tells how it ended. What
/// happened is in its environment: HOLDFAST_JOB, HOLDFAST_INCIDENT (the number), HOLDFAST_KIND,
/// HOLDFAST_WHAT, and HOLDFAST_RANKS and HOLDFAST_NODES, separated by commas. Thread-safe.
class RestartCommand {
 public:
  /// `how` is a sentence without a subject: "ended with exit code 1".
  using Ended = std::function<void(uint64_t incident, bool ok, std::string how)>;

  /// One that takes longer than `timeout` is killed, with its process group.
  RestartCommand(std::string command, std::chrono::milliseconds timeout);
  ~RestartCommand();

  /// `ended` is called from a thread of this object. What was asked for before is run now.
  void Start(Ended ended);
  /// Commands that run are left to themselves; nothing is told any more.
  void Stop();
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
  /// True once it was told how the process ended.
  bool Reap(Process& process);

  const std::string command_;
  const std::chrono::milliseconds timeout_;
  Ended ended_;
  std::vector<Process> processes_;  // only the thread
  Mutex mutex_;
  CondVar changed_;
  std::deque<IncidentRecord> wanted_ HOLDFAST_GUARDED_BY(mutex_);
  bool stopping_ HOLDFAST_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace holdfast::coord
