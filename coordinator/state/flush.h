#pragma once

#include <map>
#include <optional>
#include <string>

#include "coordinator/state/cluster.h"

// Flush: the newest version is taken to every tier when no newer one follows.
//
// The targets of the tiers select only newer versions. A flush starts when no newer version has
// come for `flush_after`, when the job is over, or when a trainer waits for a tier. It writes the
// missing shards of the newest version from memory, as repairs, until the version is on disk and at
// peer. Tiers that failed before are tried again. While the nodes write another version to a tier,
// the flush to that tier waits for it, but only for a limited time. While a job runs, its versions
// are flushed to peer, but only those to disk whose step its nodes are configured to write.
//
// Departure: when the agent of a node of a running job is about to end, all ranks write one version
// to disk at once, since a version counts there only if every rank has written the same step. The
// coordinator names the newest version that is committed in memory. It names the next one when this
// version is on disk, or can no longer be: a rank has lost it, or its write failed. While a node of
// a job without parity groups is drained, the coordinator does the same, every ten seconds at most:
// other nodes can only copy what is on disk (drain_copies.h).

namespace holdfast::coord {

/// Whether the agent of a node of the job is about to end.
bool IsLeft(const ReadContext& context, const Job& job);

/// Chooses the version that the ranks write because a node of the job leaves.
void AdvanceDeparture(const ReadContext& context, Job& job);

/// The newest committed version, and the tiers that a flush takes it to.
struct Flush {
  VersionState* version = nullptr;
  bool to_disk = false;
  bool to_peer = false;
};

/// Returns the flush that is due: the newest version lacks a tier, and no newer one follows.
std::optional<Flush> NextFlush(const ReadContext& context, Job& job);

/// Starts the flush that is due, if any. In a running job the peer target is set back to the
/// version, once: nodes free the parity of versions before the target, also while a late report
/// commits such a version at peer.
void StartFlush(const ReadContext& context, Job& job);

/// Adds to `missing` the shards that a flush of the newest version still has to write: ranks'
/// shards on disk, and parity in memory.
void PlanFlush(Context& context, Job& job, std::map<RepairKey, Repair>& missing);

/// Returns why the newest version of a job is not durable although no newer one follows; empty if
/// it is at every tier, or if a running job may still be about to write it.
std::string WhyNotDurable(const ReadContext& context, const Job& job);

}  // namespace holdfast::coord
