#pragma once

#include <string>

#include "coordinator/state/cluster.h"

// Drain: a node is made free of shards that are needed, ahead of its maintenance.
//
// A drained node takes no place in a parity group and gets no workers. Other nodes take its places
// (rehome.h) and rebuild its shards. They copy shards of jobs without parity groups
// (drain_copies.h). Copies to shared tiers are due at once. The drain is stored, and lasts until an
// operator ends it, also while the node is away.
//
// A node that is gone for good is removed: it is a drained node that nothing shows, until its agent
// attaches again, which also ends the drain.
//
// A job is safe without the drained nodes if its newest version and its pinned versions can be
// restored without them, and the newest one keeps all its redundancy: it is at a shared tier, or
// its parity groups have no erasure. While a job saves, the version before the newest one is
// enough: at most one step is lost. A job whose ranks run on the node keeps its places there, so
// that it becomes less protected when the node stops, until it runs elsewhere.

namespace holdfast::coord {

/// Drains the node, ends that, or removes the node. FailedPrecondition: a node that is up cannot be
/// removed. Unavailable: nodes may still attach to a coordinator that has just started.
void OnDrainSet(Context& context, const DrainSet& event);

/// Ends the drain of a removed node, whose agent has attached.
void EndRemoval(Context& context, Node& node);

/// Returns whether the node, together with the drained nodes, can be stopped without the loss of a
/// version. NotFound: no such node.
Result<DrainStatus> DrainOf(const ReadContext& context, const std::string& node);

/// Adds RunsMayLeave for each drained node that runs are to leave, when no job would lose a version
/// without it.
void AllowRunsToLeave(Context& context);

}  // namespace holdfast::coord
