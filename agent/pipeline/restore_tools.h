#pragma once

#include <string>

#include "agent/parity/member_streams.h"
#include "agent/peers/transport.h"
#include "agent/pipeline/coordinator_link.h"
#include "agent/pipeline/damage_tracker.h"
#include "agent/pipeline/executor.h"
#include "agent/pipeline/memory_shards.h"
#include "base/clock.h"
#include "storage/volume/volume.h"

namespace holdfast::agent {

/// A directive that the agent executes.
struct PrepareTask : PrepareShard {
  Incarnation current;  // the job's incarnation when the task began, for requests to peers
};

/// The parts of the node that restores, repairs and version readers use. All outlive them and are
/// thread-safe.
struct RestoreTools {
  std::string node;  // this node's name
  Volume& volume;
  ShardFetcher& fetcher;
  CoordinatorLink& link;
  Clock& clock;
  PeerTransport& peers;
  PeerSource& peer_source;  // of this node
  MemoryShards& memory;
  DamageTracker& damage;
  Executor& workers;

  /// Returns true when a restore must stop waiting for a slot.
  bool stopping() const { return workers.stopping(); }
  /// Returns access to a version at the members of its group. `plan` and `cancellation` outlive it.
  GroupAccess Group(const GroupPlan& plan, const std::string& job, VersionId version,
                    Incarnation incarnation, Cancellation& cancellation) const {
    return {.plan = plan,
            .self = node,
            .job = job,
            .version = version,
            .incarnation = incarnation,
            .local = peer_source,
            .transport = peers,
            .cancellation = cancellation};
  }
};

}  // namespace holdfast::agent
