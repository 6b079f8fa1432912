#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "agent/pipeline/executor.h"
#include "agent/pipeline/job_table.h"
#include "agent/pipeline/loop_queue.h"
#include "agent/pipeline/parity_service.h"
#include "agent/pipeline/rank_memory.h"
#include "agent/pipeline/restore_tools.h"
#include "agent/pipeline/session_table.h"

namespace holdfast::agent {

/// What ShardPreparer uses. All references outlive it.
struct PreparerParts {
  const RestoreTools& tools;
  int64_t wait_ms = 0;          // how long a parked directive waits for its rank
  uint32_t copies_at_once = 1;  // shards that are copied to shared tiers at the same time
  LoopQueue& loop;
  RankRegistry& ranks;
  RankMemory& memory;
  ParityService& parity;
  const JobTable& jobs;
  SessionTable& sessions;
};

/// Executes the coordinator's PrepareShard directives: brings shards into memory or onto the disks
/// of this node. A directive for a rank that has not connected yet is parked. Only the node's loop
/// thread uses it; the restores themselves run on workers and on the threads of parity keepers.
class ShardPreparer {
 public:
  explicit ShardPreparer(const PreparerParts& parts);

  /// Executes a directive and reports its outcome.
  void Apply(PrepareShard prepare);
  /// Starts to bring the shard to the tier `prepare.into`. A restore to memory uses the memory of
  /// `rank`; for a restore to disk, `rank` may be empty.
  void Start(PrepareShard prepare, RankLease rank);
  /// Starts the parked directives of a rank that has connected.
  void StartParked(const std::string& job, Rank rank, const RankLease& memory);
  /// Reports the parked directives whose rank did not connect in time as failed.
  void ExpireParked();
  /// Returns whether the shard is being brought to the tier `into`.
  bool IsPreparing(const ShardKey& key, Tier into) const { return running_.contains({key, into}); }
  /// Drops the restores to disk that have not begun, and waits for the others. Threads: any.
  void Stop() {
    repairs_.Stop();
    copies_.Stop();
  }
  /// Drops the copies and restores of shared tiers that have not begun, and waits for the others.
  /// Returns false after the timeout: the file system of a tier hangs. Threads: any.
  bool StopCopies(int64_t timeout_ms) { return copies_.StopWithin(timeout_ms); }
  /// Returns how long the oldest of the copies and restores of shared tiers has been running.
  int64_t OldestCopyMs() { return copies_.OldestTaskMs(); }

 private:
  /// A directive whose rank has not connected yet.
  struct Parked {
    PrepareShard prepare;
    Clock::TimePoint deadline;
  };

  /// No trainer has reserved memory for a parity shard, so the task reserves it first.
  void StartParity(PrepareShard prepare);
  /// Threads: any. `rank` may be nullptr only for a restore to disk.
  Status Run(const PrepareTask& prepare, RankPipeline* rank);
  /// Reports the outcome of a directive that expects it.
  void Report(const PrepareShard& prepare, const Status& outcome);
  void Finish(const ShardKey& key, Tier into, const Status& status);

  const PreparerParts parts_;
  /// Shards that are being brought to a tier: the directive that is carried out, and those that
  /// wait.
  std::map<std::pair<ShardKey, Tier>, std::vector<PrepareShard>> running_;
  std::vector<Parked> parked_;
  Executor repairs_;  // restores to disk
  /// Copies to shared tiers and restores from there. Their file systems may hang.
  Executor copies_;
};

}  // namespace holdfast::agent
