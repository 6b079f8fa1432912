#pragma once

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "agent/pipeline/executor.h"
#include "agent/pipeline/local_shards.h"
#include "agent/pipeline/rank_registry.h"
#include "base/mutex.h"
#include "storage/parity/shard_group.h"
#include "storage/volume/seen_life.h"

namespace holdfast::agent {

/// Reports what the parity shards of other lives of the coordinator's store list about their
/// groups. A coordinator that has lost its store has no plan of these groups: from the reports it
/// learns which lost shards can be decoded. Each parity shard is read once for each life.
///
/// Thread-safe; its mutex is a leaf.
class GroupReporter {
 public:
  /// The arguments outlive the object. All tasks on `background` must end before the object is
  /// destroyed.
  GroupReporter(RankRegistry& ranks, const Volume& volume, const LocalShards& shards,
                CoordinatorLink& link, Executor& background, Clock& clock)
      : ranks_(ranks),
        volume_(volume),
        shards_(shards),
        link_(link),
        background_(background),
        clock_(clock) {}

  /// Sets the life of the coordinator's store. The parity shards of all other lives are reported.
  void SetLife(const SeenLife& seen);
  /// Reports parity shards that have come since, at an interval of seconds. Call it often.
  void Tick();

 private:
  using Place = std::pair<ShardKey, Tier>;

  void Run();
  /// Returns the parity shards of this node in memory and on disk.
  std::vector<Place> ParityShards() const;
  /// Reports the shard if it is of another life than `seen`. Returns whether that is settled.
  bool Report(const Place& place, const SeenLife& seen);
  Result<ShardGroup> Read(const Place& place, const ShardSeal& seal) const;

  RankRegistry& ranks_;
  const Volume& volume_;
  const LocalShards& shards_;
  CoordinatorLink& link_;
  Executor& background_;
  Clock& clock_;
  Mutex mutex_;
  SeenLife seen_ HOLDFAST_GUARDED_BY(mutex_);
  bool running_ HOLDFAST_GUARDED_BY(mutex_) = false;
  Clock::TimePoint next_ HOLDFAST_GUARDED_BY(mutex_);
  /// Shards that need no report any more in this life.
  std::set<Place> settled_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast::agent
