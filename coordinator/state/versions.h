#pragma once

#include <optional>
#include <string>

#include "coordinator/state/cluster.h"

// Versions: which are dead, abandoned or restorable; how one is created, stored and aborted.
//
// A version without a record is dead, and never committed, if its incarnation is over, if a newer
// version of its incarnation is committed, or if its step is at or below the abort floor. A
// committed version is abandoned if a later incarnation restored a smaller step, unless that
// incarnation was opened in another life of the store, which had no record of the version. A
// version is restorable if it is committed and not abandoned, and each of its shards is available.

namespace holdfast::coord {

/// Adds a version without replicas to the job.
VersionState& CreateVersion(Job& job, VersionId id, uint32_t world, Phase phase);

/// Adds the effect that stores the version. `committed_tier_bit` is not 0 if this commits it there.
void StoreVersion(Context& context, const Job& job, VersionState& version,
                  uint32_t committed_tier_bit);

/// Returns what proves that the version, which is committed, was committed with these bytes.
VersionCommit CommitOf(const ReadContext& context, const Job& job, const VersionState& version);

/// Aborts a pending version, with a record if `store`: its replicas are removed, and the targets
/// that selected it take another one.
void AbortVersion(Context& context, Job& job, VersionState& version, bool store);

/// Orders the removal of the version's replicas at these stored tiers (mask of TierBit).
void RemoveStored(Job& job, const VersionState& version, uint32_t tiers);

/// Whether a version without a record can never be committed.
bool IsDead(const Job& job, VersionId version);

/// Whether a later incarnation restored a smaller step.
bool IsAbandoned(const Job& job, VersionId version);

/// Whether the version can be restored from good replicas and decodes.
bool IsRestorable(const Job& job, const VersionState& version);

/// The same as IsRestorable(), but the good chunks of damaged replicas count too.
bool MayBeRestorable(const Job& job, const VersionState& version);

/// Whether a shared tier has the version. Then the loss of nodes takes nothing from it.
bool IsAtSharedTier(const VersionState& version);

/// Returns the newest version committed at the tier and not abandoned.
std::optional<VersionId> NewestCommitted(const Job& job, Tier tier);

/// Returns the newer of the newest versions committed in memory and on disk.
std::optional<VersionId> NewestOfNodes(const Job& job);

/// Returns the newest restorable version.
std::optional<VersionId> NewestRestorable(const Job& job);

/// Returns the retention floor at tier peer: the newest version committed at peer, which agents
/// keep in memory until a newer one is committed there. If the current incarnation has no parity
/// groups, its first commit in memory replaces the floor, and there is none.
std::optional<VersionId> PeerFloor(const Job& job);

/// Returns the record of the damage. Records a finding if the damage is new.
DamagedReplica& RecordDamage(Context& context, Job& job, VersionState& version, Rank rank,
                             Replica replica, const std::string& what);

}  // namespace holdfast::coord
