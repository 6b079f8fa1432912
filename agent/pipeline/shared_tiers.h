#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "agent/pipeline/coordinator_link.h"
#include "agent/pipeline/executor.h"
#include "agent/pipeline/warnings.h"
#include "base/clock.h"
#include "base/tiers.h"
#include "storage/volume/tier_store.h"

namespace holdfast::agent {

/// Removes and lists the shards of the shared tiers. The work runs on a separate thread, since a
/// file system may hang; calls return at once. The node of a job's rank 0 lists the job: shards
/// that the coordinator's records do not name are removed then. Only the loop thread uses it, with
/// the exception of Stop().
class SharedTiers {
 public:
  /// The arguments outlive the object. nullptr: the node does not reach the tier.
  SharedTiers(PerTier<TierStore*> stores, CoordinatorLink& link, Warnings& warnings, Clock& clock)
      : stores_(stores), link_(link), warnings_(warnings), clock_(clock), thread_(1, clock) {}

  void SetLife(LifeId life);
  /// Removes a version. A removal that fails is repeated when a listing reports its shards again.
  void RemoveVersion(Tier tier, const std::string& job, VersionId version);
  /// Removes all versions of incarnations up to `upto`.
  void RemoveJob(const std::string& job, Incarnation upto);
  /// Reports the job's shards at each tier, if they were not listed for some time.
  void ListIfDue(const std::string& job);
  void Forget(const std::string& job) { next_listing_.erase(job); }
  /// Sets the warning about a tier that does not answer; `oldest_copy_ms` is the age of the oldest
  /// copy in progress.
  void WarnOfHang(int64_t oldest_copy_ms);
  /// Returns false when a call of a file system has not returned after the timeout. Threads: any.
  bool StopWithin(int64_t timeout_ms) { return thread_.StopWithin(timeout_ms); }

 private:
  void Remove(Tier tier, const std::string& job, VersionId version);
  void List(Tier tier, const std::string& job);

  const PerTier<TierStore*> stores_;
  CoordinatorLink& link_;
  Warnings& warnings_;
  Clock& clock_;
  std::map<std::string, Clock::TimePoint> next_listing_;
  Executor thread_;
};

}  // namespace holdfast::agent
