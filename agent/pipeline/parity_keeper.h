#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "agent/parity/member_streams.h"
#include "agent/pipeline/coordinator_link.h"
#include "agent/pipeline/parity_log.h"
#include "agent/pipeline/peer_source.h"
#include "agent/pipeline/rank_memory.h"
#include "agent/pipeline/rank_registry.h"
#include "agent/pipeline/warnings.h"
#include "base/mutex.h"
#include "base/thread.h"

namespace holdfast::agent {

/// The parts of the node that building parity uses. All outlive the keepers and are thread-safe.
struct ParityTools {
  std::string node;  // this node's name
  int64_t build_timeout_ms = 0;
  RankRegistry& ranks;
  RankMemory& memory;
  NodePeerSource& source;
  PeerTransport& transport;
  CoordinatorLink& link;
  Warnings& warnings;
  Clock& clock;
};

/// A job's thread that builds this node's parity shards, one version after the other. The thread
/// waits until a rank of the node saves the next eligible version. Then it builds, seals and
/// reports the parity shard. A version that fails is reported as FailedReplica, and the coordinator
/// moves on to the next one.
///
/// Thread-safe. Its mutex is taken before those of RankRegistry and SlotTable; that of ChangeSignal
/// is a leaf.
class ParityKeeper {
 public:
  /// Starts the thread. `tools` outlives the keeper.
  ParityKeeper(const ParityTools& tools, std::string job);
  ~ParityKeeper();

  /// Sets the coordinator's latest job state. Cancels a build that it makes obsolete.
  void SetJobState(const JobState& job);
  /// Runs the task between two versions. Drops it when the keeper ends first.
  void Post(std::function<void()> task);

 private:
  struct Work {
    GroupPlan plan;
    uint32_t position = 0;   // of this node in the plan
    ShardIdentity identity;  // of the parity shard
    std::shared_ptr<Cancellation> cancellation;
  };

  void Run();
  /// Waits for the next version to protect; returns nothing when stopping. Runs posted tasks while
  /// it waits.
  std::optional<Work> Await();
  /// Returns the next version to protect if a rank of this node saves or has it, and makes it the
  /// current one.
  std::optional<Work> TakeWork();
  /// Runs one posted task. Returns false when there is none.
  bool RunTask();
  Status Protect(const Work& work);
  /// Returns whether the coordinator no longer needs the parity of this version.
  bool IsObsolete(const Work& work) const HOLDFAST_REQUIRES(mutex_);

  const ParityTools& tools_;
  const std::string job_name_;
  ParityLog log_;          // used by thread_ only
  ChangeSignal& changed_;  // RankRegistry::peer_versions(); changes of this object raise it, too
  Mutex mutex_;
  std::optional<JobState> job_ HOLDFAST_GUARDED_BY(mutex_);
  std::optional<VersionId> done_ HOLDFAST_GUARDED_BY(mutex_);  // protected, or given up
  std::optional<Work> current_ HOLDFAST_GUARDED_BY(mutex_);
  std::deque<std::function<void()>> tasks_ HOLDFAST_GUARDED_BY(mutex_);
  bool stopping_ HOLDFAST_GUARDED_BY(mutex_) = false;
  Thread thread_;
};

}  // namespace holdfast::agent
