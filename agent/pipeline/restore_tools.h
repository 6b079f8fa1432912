#pragma once

#include <optional>
#include <string>

#include "agent/chunks/decoded_chunks.h"
#include "agent/pipeline/coordinator_link.h"
#include "agent/pipeline/damage_tracker.h"
#include "agent/pipeline/executor.h"
#include "agent/pipeline/local_shards.h"
#include "base/clock.h"
#include "base/tiers.h"
#include "storage/chunks/source_selector.h"
#include "storage/volume/volume.h"

namespace holdfast::agent {

/// A directive that the agent executes.
struct PrepareTask : PrepareShard {
  Incarnation current;  // the job's incarnation when the task began, for requests to peers
};

/// The parts of the node that restores, repairs and version readers use. All outlive them and are
/// thread-safe.
struct RestoreTools {
  GroupReach reach;  // of this node
  Volume& volume;
  LocalShards& local;
  CoordinatorLink& link;
  Clock& clock;
  DamageTracker& damage;
  Executor& workers;
  PerTier<TierStore*> stores = {};  // disk, and the shared tiers that the node reaches

  const std::string& node() const { return reach.node; }
  /// Returns true when a restore must stop waiting for a slot.
  bool stopping() const { return workers.stopping(); }
};

}  // namespace holdfast::agent
