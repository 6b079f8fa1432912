#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "agent/arena/arena.h"
#include "agent/pipeline/change_signal.h"
#include "agent/pipeline/coordinator_link.h"
#include "agent/pipeline/rank_events.h"
#include "agent/pipeline/rank_pipeline.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "storage/volume/seen_life.h"
#include "storage/volume/volume.h"

namespace holdfast::agent {

using RankKey = std::pair<std::string, Rank>;  // job and rank

struct RankOptions {
  uint64_t disk_every_steps = 0;  // 0: as often as the disks keep up
  uint64_t peer_every_steps = 0;  // 0: as often as the peers keep up
  SeenLife seen_life = {};        // the life that the agent followed before its start
};

/// The ranks that have memory on this node: the current pipeline of each rank, and the retained
/// segments. A retained segment is the former memory of a rank that now has larger memory. It is
/// kept until newer versions are safe. A pipeline exists from Add() until Remove() or Clear().
///
/// Thread-safe. Its mutex is taken after that of RankMemory and before those of SlotTable and the
/// arena.
class RankRegistry {
 public:
  /// `arena`, `volume`, `checksums` and `clock` outlive the registry.
  RankRegistry(const RankOptions& options, Arena& arena, Volume& volume, ChecksumPool& checksums,
               Clock& clock);
  ~RankRegistry();

  /// Sets the receiver of the ranks' events, which outlives them. Call it once, before Add().
  void SetEvents(RankEvents& events) { events_ = &events; }

  /// Starts the pipeline of a segment, and offers the segment's memory to the volume.
  RankLease Add(Segment& segment);
  /// Returns the rank's current pipeline, or an empty lease.
  RankLease Find(const std::string& job, Rank rank);
  /// Returns the pipeline whose memory has the version; its memory may be a retained segment. If no
  /// memory has the version, returns the rank's current pipeline, or an empty lease.
  RankLease FindHolder(const ShardKey& key);
  /// Returns all pipelines, parity and retained segments included.
  std::vector<RankLease> All();
  /// Calls `visit` with each pipeline, for overviews. Makes no leases, because a lease would keep
  /// Remove() from removing the rank. `visit` is called with the mutex held: it must not block or
  /// call the registry.
  void ForEach(const std::function<void(RankPipeline&)>& visit);
  /// Returns whether the job has memory on this node, retained segments included.
  bool HasMemoryOf(const std::string& job);
  std::vector<RankLease> OfJob(const std::string& job);
  std::vector<RankLease> Retained();
  bool HasRetained();
  /// Returns the pipelines that have no connected trainer and that `job` does not need in a start
  /// of `world` ranks (0: not known). These are other jobs' ranks, ranks beyond the world, and
  /// retained segments.
  std::vector<RankLease> Idle(const std::string& job, uint32_t world);

  /// Frees all slots of the rank and takes it out of the registry; returns the freed versions.
  /// Unavailable: there are other leases. FailedPrecondition: a slot must stay (see
  /// RankSlots::Vacate). The memory can be released after the lease has ended.
  Result<std::vector<VersionId>> Remove(const RankLease& rank, bool on_disk_too);
  /// Makes the rank's memory a retained segment.
  Status Retain(const RankLease& rank);
  /// Makes a retained segment the rank's memory again, unless the rank has other memory.
  void Reinstate(const RankLease& rank);

  /// Sets the coordinator's latest state of a job for all its pipelines, also for those that are
  /// added later. No other code sets it, so that no slot ever follows an older state than before.
  void SetJobState(const JobState& job);
  /// Drops the state of one job, which has no memory left.
  void ForgetJobState(const std::string& job);
  /// Drops the states of all jobs: no slot is freed until the next SetJobState().
  void ForgetJobStates();
  /// Sets the life of new saves of all ranks. Returns the previous life; 0: not known.
  LifeId SetLife(LifeId life, LifeId unlabeled);
  /// Reports that a slot of the rank may have become free or freeable.
  void NotifySlotsChanged(const std::string& job, Rank rank);
  /// Raised whenever a rank has another shard for its peers (see PeerSlots::NextForPeers).
  ChangeSignal& peer_versions() { return peer_versions_; }

  /// Ends all pipelines without leases. The others end with their last lease.
  void Clear();

 private:
  /// `job` nullptr: all jobs.
  std::vector<RankLease> Select(const std::string* job);

  const RankOptions options_;
  Arena& arena_;
  Volume& volume_;
  ChecksumPool& checksums_;
  Clock& clock_;
  RankEvents* events_ = nullptr;
  ChangeSignal peer_versions_;
  Mutex mutex_;
  std::map<RankKey, std::shared_ptr<RankPipeline>> ranks_ HOLDFAST_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<RankPipeline>> retained_ HOLDFAST_GUARDED_BY(mutex_);
  std::map<std::string, JobState> jobs_ HOLDFAST_GUARDED_BY(mutex_);
  LifeId life_ HOLDFAST_GUARDED_BY(mutex_);       // of the coordinator's store; 0: not known yet
  LifeId unlabeled_ HOLDFAST_GUARDED_BY(mutex_);  // see SeenLife
};

}  // namespace holdfast::agent
