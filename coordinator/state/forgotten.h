#pragma once

#include <string>
#include <vector>

#include "coordinator/state/cluster.h"

// Forgotten jobs, until no node has replicas of them.
//
// Replicas of the forgotten incarnations never count. Attached nodes get the directive to remove
// them at once; other nodes get it when they attach and list such replicas. The record of a
// forgotten job has its last incarnation, so that a new job of that name continues above it. The
// record is erased when every node that may have replicas has reported that none is left.

namespace holdfast::coord {

/// Updates the forgotten jobs from a node's inventory. After the event, the node gets the directive
/// to remove its replicas of them.
void RecordForgottenReplicas(Context& context, NodeIndex node,
                             const std::vector<StoredReplica>& replicas);

/// Whether the replica belongs to a forgotten incarnation. If so, its node gets the directive to
/// remove it.
bool RejectForgotten(Context& context, NodeIndex node, const StoredReplica& report);

/// Records that the node has removed a replica.
void OnForgottenRemoved(Context& context, NodeIndex node, const RemovedReplica& removed);

/// Stores the record of a forgotten job, or erases it if no node has replicas of the job any more.
void StoreForgotten(Context& context, const std::string& name);

/// Sends the nodes their directives to remove replicas of forgotten jobs.
void SendForgotten(Context& context);

}  // namespace holdfast::coord
