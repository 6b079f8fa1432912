#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "agent/parity/member_streams.h"
#include "agent/pipeline/coordinator_link.h"
#include "agent/pipeline/parity_log.h"
#include "agent/pipeline/peer_source.h"
#include "storage/base/mutex.h"

namespace holdfast::agent {

struct RankPipeline;

/// What making parity needs of the node; all outlive the keeper.
struct ParityTools {
  NodePeerSource& source;
  PeerTransport& transport;
  CoordinatorLink& link;
  Clock& clock;
  std::string node;
  int64_t build_timeout_ms = 0;
  /// Memory for the parity shards of a job: two slots of `slot_bytes`. Blocks.
  std::function<Result<std::shared_ptr<RankPipeline>>(const std::string& job, Rank parity,
                                                      uint64_t slot_bytes)>
      reserve;
  std::function<std::shared_ptr<RankPipeline>(const std::string& job, Rank rank)> find_rank;
  /// A condition an operator should see; empty: it is over.
  std::function<void(const std::string& text)> warn;
};

/// The coordinator's word as it concerns parity shards: what counts for them is the tier peer.
JobState ForParity(JobState job);

/// One job's thread that makes this node's parity shards, one version after the other: waits until
/// a rank of the node saves the version that is due, builds, seals, reports. A version that fails
/// is reported Missing, so that the coordinator moves on; nothing waits for it. Thread-safe.
class ParityKeeper {
 public:
  ParityKeeper(ParityTools tools, std::string job);
  ~ParityKeeper();

  /// The coordinator's latest word. Ends a build that it makes pointless.
  void SetJobState(const JobState& job);
  /// Runs the task between two versions. Dropped when the keeper ends first.
  void Post(std::function<void()> task);

 private:
  struct Work {
    GroupPlan plan;
    uint32_t position = 0;   // of this node in it
    ShardIdentity identity;  // of the parity shard
    std::shared_ptr<Cancellation> cancellation;
  };

  void Run();
  /// The version to protect next; nothing when stopping. Runs posted tasks meanwhile.
  std::optional<Work> Await();
  Status Protect(const Work& work);
  bool Pointless(const Work& work) const HOLDFAST_REQUIRES(mutex_);

  const ParityTools tools_;
  const std::string job_name_;
  ParityLog log_;  // the thread's
  Mutex mutex_;
  CondVar changed_;
  std::optional<JobState> job_ HOLDFAST_GUARDED_BY(mutex_);
  std::optional<VersionId> done_ HOLDFAST_GUARDED_BY(mutex_);  // protected, or given up
  std::optional<Work> current_ HOLDFAST_GUARDED_BY(mutex_);
  std::deque<std::function<void()>> tasks_ HOLDFAST_GUARDED_BY(mutex_);
  bool stopping_ HOLDFAST_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace holdfast::agent
