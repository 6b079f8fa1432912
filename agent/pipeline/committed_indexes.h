#pragma once

#include <map>
#include <optional>
#include <string>

#include "agent/pipeline/coordinator_link.h"
#include "agent/pipeline/executor.h"
#include "agent/pipeline/node_indexes.h"
#include "base/mutex.h"
#include "storage/volume/volume.h"

namespace holdfast::agent {

/// Makes the index of this node's shards of the newest version on disk, once for each version, when
/// the version is committed there. A restore into another world then reads the index instead of the
/// headers. The work runs on `background`, takes at most one hundredth of the time, and takes the
/// newest version only: a job that writes every step to disk gets no index for most of them.
///
/// Thread-safe; its mutex is a leaf.
class CommittedIndexes {
 public:
  /// The arguments outlive the object. All tasks on `background` must end before the object is
  /// destroyed.
  CommittedIndexes(const Volume& volume, NodeIndexes& indexes, Executor& background, Clock& clock)
      : volume_(volume), indexes_(indexes), background_(background), clock_(clock) {}

  void SetJobState(const JobState& state);
  /// The job has no state here any more. Its index is kept: the job may start again.
  void Drop(const std::string& job);
  /// Makes the next index that is due. Call it often.
  void Tick();

 private:
  struct Progress {
    std::optional<VersionId> newest;  // committed on disk
    std::optional<VersionId> made;    // or tried
  };

  void Make(const std::string& job, VersionId version);

  const Volume& volume_;
  NodeIndexes& indexes_;
  Executor& background_;
  Clock& clock_;
  Mutex mutex_;
  std::map<std::string, Progress> jobs_ HOLDFAST_GUARDED_BY(mutex_);
  bool running_ HOLDFAST_GUARDED_BY(mutex_) = false;
  Clock::TimePoint next_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast::agent
