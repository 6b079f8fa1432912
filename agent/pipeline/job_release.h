#pragma once

#include <atomic>
#include <map>
#include <string>
#include <vector>

#include "agent/pipeline/executor.h"
#include "agent/pipeline/parity_service.h"
#include "agent/pipeline/rank_memory.h"
#include "agent/pipeline/session_table.h"

namespace holdfast::agent {

/// Frees the memory and the threads of jobs that are over, and retained segments that are no longer
/// needed. Workers free the memory, one segment after the other, each once nothing uses it. Only
/// the node's loop thread uses the object.
class JobRelease {
 public:
  /// The arguments outlive the object.
  JobRelease(RankRegistry& ranks, RankMemory& memory, ParityService& parity,
             const SessionTable& sessions, Executor& workers, Clock& clock)
      : ranks_(ranks),
        memory_(memory),
        parity_(parity),
        sessions_(sessions),
        workers_(workers),
        clock_(clock) {}

  /// Begins to free the memory of a job, until Cancel() or until a trainer of the job connects.
  void Start(const std::string& job) { next_try_.try_emplace(job, clock_.Now()); }
  void Cancel(const std::string& job) { next_try_.erase(job); }
  void CancelAll() { next_try_.clear(); }
  /// Advances all releases. Returns the jobs that have no memory left. Call it every tick.
  std::vector<std::string> Advance();

 private:
  void ReleaseRetained();

  RankRegistry& ranks_;
  RankMemory& memory_;
  ParityService& parity_;
  const SessionTable& sessions_;
  Executor& workers_;
  Clock& clock_;
  std::map<std::string, Clock::TimePoint> next_try_;  // by job
  std::atomic<bool> releasing_retained_{false};       // a worker is releasing them
};

}  // namespace holdfast::agent
