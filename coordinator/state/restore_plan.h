#pragma once

#include <optional>

#include "coordinator/state/cluster.h"

// The restore plan of the current incarnation: which ranks wait, and what is prepared where.
//
// A task is reset when its rank moves to another node, when its target or source is lost, and when
// the plan switches to another version. The recovery barrier is open when every node that may have
// replicas of the job is attached or has been away for a full lease: only then is it certain which
// versions can be restored.

namespace holdfast::coord {

/// Whether the recovery barrier is open.
bool BarrierOpen(const ReadContext& context, const Job& job);

/// Whether a restore is pending. Repairs wait for it, since it prepares the shards of its ranks and
/// needs the nodes. A start whose ranks request no restore counts as a pending restore for at most
/// one minute after the last join.
bool IsRestoring(const ReadContext& context, const Job& job);

/// Adds a node to those that the job's record names.
void AddNode(Job& job, NodeIndex node);

/// Records on which node the rank runs.
void PlaceRank(Job& job, Rank rank, NodeIndex node);

/// Makes another version the candidate, or none. All tasks start again.
void SwitchCandidate(Job& job, std::optional<VersionId> candidate);

/// Ends the rank's task, if it has one: a reply to its directive no longer matters.
void ResetRestoreTask(Job& job, Rank rank);

/// Resets restore tasks after `node` was lost or attached again. With `keep_ready` it is the same
/// agent, which still has its prepared shards in memory.
void FailRestoreTasksOf(Context& context, Job& job, NodeIndex node, bool keep_ready);

/// Refuses all of these ranks.
void RefuseAll(Context& context, std::vector<RestoreWaiter>& waiters, const Status& why);

/// Refuses the waiting ranks; those that reshard only with `include_reshards`.
void RefuseWaiters(Context& context, Job& job, const Status& why, bool include_reshards = true);

}  // namespace holdfast::coord
