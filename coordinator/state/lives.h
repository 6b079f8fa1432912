#pragma once

#include <string>
#include <vector>

#include "coordinator/state/cluster.h"
#include "coordinator/state/statuses.h"

// Quarantined replicas, and agents that this coordinator refuses.
//
// A replica counts if it is of this life of the store, or if a record has its digest, which proves
// that its bytes are the committed ones. All other replicas are quarantined: their node keeps them,
// and they do not count until an operator adopts their versions (adoption.h).

namespace holdfast::coord {

/// Assigns this life to the replicas that have none, unless `life_seen` is the life of a
/// coordinator that their node has seen.
std::vector<StoredReplica> AssignLife(const ReadContext& context,
                                      std::vector<StoredReplica> replicas, LifeId life_seen);

/// Whether the replica counts: it is of this life, or a record has its digest, which proves that
/// its bytes are the committed ones.
bool CountsInThisLife(const ReadContext& context, const StoredReplica& report);

/// Whether another life of the store opened the incarnation. Then only an adoption creates versions
/// of the incarnation: agents ended its trainers when the life changed. A failed save that an agent
/// reported must not become a version here, since the version might be adopted later.
bool IsOfOtherLife(const ReadContext& context, const LineageRecord& lineage);

/// Records the replica as quarantined.
void QuarantineReplica(Context& context, NodeIndex node, const StoredReplica& report);

/// Whether an attached node has quarantined replicas of the job.
bool HasQuarantined(const ReadContext& context, const std::string& job);

/// Forgets a quarantined replica that its node has removed.
void DropQuarantined(Context& context, NodeIndex node, const RemovedReplica& removed);

/// Records a refused attach. `holdfast status` lists the agent as long as it tries to attach.
void RecordRefused(Context& context, const NodeAttached& event, const Status& why);

/// Returns the agents whose attach was refused recently.
std::vector<RefusedNode> RefusedNodes(const ReadContext& context);

/// Lists a node's quarantined replicas by life and job. Lives that versions of the job were adopted
/// from are left out, since what remains of them is incomplete.
std::vector<OtherLifeStatus> OtherLivesOf(const ReadContext& context, const Node& node);

}  // namespace holdfast::coord
