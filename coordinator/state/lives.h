#pragma once

#include <string>
#include <vector>

#include "coordinator/state/cluster.h"
#include "coordinator/state/statuses.h"

// Quarantined replicas, and agents that this coordinator refuses.
//
// A replica counts if it is of this life of the store, or if a record has its digest, which proves
// that its bytes are the committed ones. All others are quarantined: their node keeps them, and
// they do not count. adoption.h makes versions of them.

namespace holdfast::coord {

/// Assigns replicas without a life to this one if their node has seen no other life before.
std::vector<StoredReplica> AssignLife(const ReadContext& context,
                                      std::vector<StoredReplica> replicas, LifeId life_seen);

/// Whether the replica counts: it is of this life, or a record has its digest, which proves that
/// its bytes are the committed ones.
bool CountsInThisLife(const ReadContext& context, const StoredReplica& report);

/// Keeps the replica as one that does not count.
void QuarantineReplica(Context& context, NodeIndex node, const StoredReplica& report);

/// Whether an attached node has quarantined replicas of the job.
bool HasQuarantined(const ReadContext& context, const std::string& job);

/// The node has removed the replica.
void DropQuarantined(Context& context, NodeIndex node, const RemovedReplica& removed);

/// Records a refused attach: `holdfast status` lists the agent while it keeps trying.
void RecordRefused(Context& context, const NodeAttached& event, const Status& why);

/// Returns the agents whose attach was refused recently.
std::vector<RefusedNode> RefusedNodes(const ReadContext& context);

/// Lists a node's quarantined replicas by life and job. A life that versions of the job were
/// adopted from is left out: what remains of it is incomplete.
std::vector<OtherLifeStatus> OtherLivesOf(const ReadContext& context, const Node& node);

}  // namespace holdfast::coord
