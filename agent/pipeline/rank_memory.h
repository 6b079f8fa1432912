#pragma once

#include <functional>
#include <set>
#include <string>

#include "agent/arena/arena.h"
#include "agent/pipeline/coordinator_link.h"
#include "agent/pipeline/rank_registry.h"
#include "base/mutex.h"

namespace holdfast::agent {

/// Assigns the arena's memory to ranks. A rank gets memory when its trainer connects. A node's
/// parity shards of a job get memory when the first of them is built or restored. Memory of
/// finished ranks and jobs is reassigned. A segment that is too small for its rank, but has shards
/// that are still needed, becomes a retained segment. Calls block, some for minutes: run them on a
/// worker.
///
/// Thread-safe. Its mutex is held while memory changes owner, and is taken before that of
/// RankRegistry. Ranks reserve in parallel; one rank has one reservation at a time.
class RankMemory {
 public:
  /// `ranks`, `arena` and `link` outlive the object. `before_reserve` is for tests: it is called
  /// before memory is reserved in the arena, and may be empty.
  RankMemory(RankRegistry& ranks, Arena& arena, CoordinatorLink& link,
             std::function<void(const SegmentOwner&)> before_reserve);

  /// Returns the rank with memory of at least `slots` slots of `slot_bytes`. `world` is the world
  /// of the job's current start; 0: not known. When the arena is full, a trainer's rank gets memory
  /// of ranks and jobs that have ended and whose versions are safe on disk, that of jobs with
  /// priority last. It waits up to ten seconds for versions that go to disk. Errors as
  /// Arena::Reserve.
  Result<RankLease> Reserve(const SegmentOwner& owner, uint32_t slots, uint64_t slot_bytes,
                            uint32_t world);
  /// As Reserve(), for the parity shards of a job: one slot for the committed version and one for
  /// the version that is being built. Marks the memory as connected.
  Result<RankLease> ReserveParity(const std::string& job, Rank parity, uint64_t slot_bytes);
  /// Frees memory of a job that is over: that of each rank without a trainer whose memory nothing
  /// uses and whose versions are safe on disk (see RankSlots::Vacate). Call it again for the
  /// others.
  void ReleaseJob(const std::string& job);
  /// Frees the retained segments of which no shard is needed any more.
  void ReleaseRetained();

 private:
  Result<Segment*> FromArena(const SegmentOwner& owner, uint32_t slots, uint64_t slot_bytes);
  Result<RankLease> ReserveInTurn(const SegmentOwner& owner, uint32_t slots, uint64_t slot_bytes,
                                  uint32_t world);
  /// Releases idle memory until *segment is reserved. Returns whether more idle memory may become
  /// releasable.
  bool ReassignIdle(const SegmentOwner& owner, uint32_t slots, uint64_t slot_bytes, uint32_t world,
                    Result<Segment*>* segment) HOLDFAST_REQUIRES(mutex_);
  /// Frees all slots of a rank's memory, removes the rank from the registry and reports the freed
  /// replicas. Errors as RankRegistry::Remove.
  Status Retire(const RankLease& rank, bool on_disk_too);

  RankRegistry& ranks_;
  Arena& arena_;
  CoordinatorLink& link_;
  const std::function<void(const SegmentOwner&)> before_reserve_;
  Mutex mutex_;
  CondVar reserved_;
  std::set<RankKey> reserving_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast::agent
