#pragma once

#include <string>
#include <vector>

#include "agent/pipeline/damage_tracker.h"
#include "agent/pipeline/executor.h"
#include "agent/pipeline/warnings.h"

namespace holdfast::agent {

/// Removes shards from this node's disks as the coordinator directs, and warns of files in
/// quarantine. The work runs on `background`; calls return at once. Thread-safe; has no mutex.
class DiskRetention {
 public:
  /// The arguments outlive the object.
  DiskRetention(Volume& volume, CoordinatorLink& link, DamageTracker& damage, Warnings& warnings,
                Executor& background)
      : volume_(volume),
        link_(link),
        damage_(damage),
        warnings_(warnings),
        background_(background) {}

  /// Removes a version. The coordinator repeats the directive when the task was dropped.
  void RemoveVersion(const std::string& job, VersionId version);
  /// Removes all versions of incarnations up to `upto`.
  void RemoveJob(const std::string& job, Incarnation upto);
  /// Sets the operator's warning while the disks have quarantined files; clears it otherwise.
  void WarnOfQuarantine();

 private:
  /// Runs on `background_`.
  void Remove(const std::string& job, VersionId version, const std::vector<ShardKey>& keys);

  Volume& volume_;
  CoordinatorLink& link_;
  DamageTracker& damage_;
  Warnings& warnings_;
  Executor& background_;
};

}  // namespace holdfast::agent
