#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "agent/pipeline/coordinator_link.h"
#include "agent/pipeline/executor.h"
#include "agent/pipeline/rank_registry.h"
#include "base/mutex.h"
#include "storage/format/commit.h"
#include "storage/volume/volume.h"

namespace holdfast::agent {

/// Records which versions the coordinator has committed, for the versions whose shards this node
/// has. A coordinator that has lost its store learns from the agents which versions were committed,
/// and whether their shards are the committed ones.
///
/// A file of the volume keeps the record. `background` writes the file, at most once in two
/// seconds, so that a job that saves every step does not sync a file for each of them. After a
/// crash before the write, the newest commits are unknown, and nothing false is reported.
///
/// Thread-safe. Calls the link with its mutex held.
class KnownCommits {
 public:
  /// The arguments outlive the object. All tasks on `background` must end before the object is
  /// destroyed.
  KnownCommits(RankRegistry& ranks, Volume& volume, CoordinatorLink& link, Executor& background,
               Clock& clock)
      : ranks_(ranks), volume_(volume), link_(link), background_(background), clock_(clock) {}

  /// Reads the file, and passes what it contains to the link.
  void Load();
  /// Adds the commits of a job state.
  void Add(const JobState& state);
  /// Call when this node no longer has the job: commits without shards here are then removed.
  void Drop(const std::string& job);
  /// Writes what is new, if the last write was long enough ago. Call it often.
  void Tick();
  /// Writes what is new at once. Call it after the last task on `background`.
  void Flush();

 private:
  using Version = std::pair<std::string, VersionId>;

  void Write();
  /// Returns the versions of which memory or disk has a shard.
  std::set<Version> VersionsHere() const;
  void Publish() HOLDFAST_REQUIRES(mutex_);

  RankRegistry& ranks_;
  Volume& volume_;
  CoordinatorLink& link_;
  Executor& background_;
  Clock& clock_;
  Mutex mutex_;
  std::set<VersionCommit> known_ HOLDFAST_GUARDED_BY(mutex_);
  std::set<VersionCommit> written_ HOLDFAST_GUARDED_BY(mutex_);
  /// The versions in the newest state of each job: their shards may still be on their way here.
  std::map<std::string, std::vector<VersionCommit>> named_ HOLDFAST_GUARDED_BY(mutex_);
  bool changed_ HOLDFAST_GUARDED_BY(mutex_) = false;
  bool writing_ HOLDFAST_GUARDED_BY(mutex_) = false;
  bool writable_ HOLDFAST_GUARDED_BY(mutex_) = true;  // false: a newer release wrote the file
  bool failed_ HOLDFAST_GUARDED_BY(mutex_) = false;   // the last write
  Clock::TimePoint next_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast::agent
