#pragma once

#include <cstdint>

#include "agent/pipeline/damage_tracker.h"
#include "agent/pipeline/executor.h"
#include "agent/pipeline/rank_registry.h"
#include "base/mutex.h"

namespace holdfast::agent {

/// Takes over what an earlier agent process left on this node: shards on disk and sealed slots in
/// memory. Thread-safe; its mutex is a leaf.
class Adoption {
 public:
  /// The arguments outlive the object. All tasks on `workers` must end before the object is
  /// destroyed.
  Adoption(RankRegistry& ranks, Arena& arena, Volume& volume, CoordinatorLink& link,
           DamageTracker& damage, Executor& workers, Clock& clock)
      : ranks_(ranks),
        arena_(arena),
        volume_(volume),
        link_(link),
        damage_(damage),
        workers_(workers),
        clock_(clock) {}

  /// Reports the shards on disk, adds the arena's segments to the registry, and starts to verify
  /// their sealed slots, newest first. Each slot is reported once its check has passed.
  void Start();
  /// Waits until the checks of Start() are done. Returns false after the timeout.
  bool Await(int64_t timeout_ms);

 private:
  void Verify(const RankLease& rank, VersionId version);

  RankRegistry& ranks_;
  Arena& arena_;
  Volume& volume_;
  CoordinatorLink& link_;
  DamageTracker& damage_;
  Executor& workers_;
  Clock& clock_;
  Mutex mutex_;
  CondVar changed_;
  uint32_t checks_left_ HOLDFAST_GUARDED_BY(mutex_) = 0;
};

}  // namespace holdfast::agent
