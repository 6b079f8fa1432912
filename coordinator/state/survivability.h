#pragma once

#include <cstdint>
#include <optional>

#include "coordinator/state/job.h"

// Which shards of a version exist or can be decoded, by counting replicas; no bytes are read.
//
// A member of a parity group has its data if its own node has a replica of each of its ranks'
// shards, and its parity if its own node has its parity shard: replicas on other nodes do not help
// the group. From this, storage/erasure/survivability.h decides what the group can decode. A shard
// is available if an attached node has a replica of it or its group can decode it. Damaged replicas
// count only for callers that pass kIncludeDamaged.

namespace holdfast::coord {

/// Returns the member with this number in the plan of `incarnation`, which must have a plan.
const PlannedMember& MemberAt(const Job& job, Incarnation incarnation, uint32_t number);

/// The tiers that store replicas, as a mask of TierBit.
inline constexpr uint32_t kAnyTier = TierBit(Tier::kMemory) | TierBit(Tier::kDisk);
/// Combined with tiers: also counts damaged replicas, as a last resort for decoding, since two
/// replicas rarely have the same bad chunk. Never used for commit or retention.
inline constexpr uint32_t kIncludeDamaged = 1U << 31;

/// Whether the member has all its ranks' shards (HasData) or its parity shard (HasParity) of the
/// version, each at one of `tiers`.
bool HasData(const Job& job, const VersionState& version, uint32_t number, uint32_t tiers);
bool HasParity(const Job& job, const VersionState& version, uint32_t number, uint32_t tiers);

/// Returns the number of erasures in the group's worst stripe. A member contributes data to every
/// stripe except those that it holds parity for.
uint32_t Erasures(const Job& job, const VersionState& version, uint32_t group, uint32_t tiers);

/// Whether the group can decode the shards that it lacks.
bool CanDecodeGroup(const Job& job, const VersionState& version, uint32_t group,
                    uint32_t tiers = kAnyTier);

/// Whether shards of the version may be decoded: it is committed at a tier that keeps parity.
bool MayDecode(const VersionState& version);

/// Whether the version may be committed at peer: it is committed in memory or on disk, and at that
/// tier every member of every group has its data and its parity. Once a later incarnation has
/// parity groups, memory does not count.
bool IsCompleteAtPeer(const Job& job, const VersionState& version);

/// Whether the group of `rank` can decode its shard from replicas at `tiers`.
bool CanDecode(const Job& job, const VersionState& version, Rank rank, uint32_t tiers = kAnyTier);

/// Whether an attached node has a replica of the rank's shard, or the group can decode it.
bool IsAvailable(const Job& job, const VersionState& version, Rank rank, uint32_t tiers = kAnyTier);

/// Whether IsAvailable() holds for every rank. The result is cached in `version`.
bool IsFullyAvailable(const Job& job, const VersionState& version);
/// The same as IsFullyAvailable(), but damaged replicas count too.
bool MayBeFullyAvailable(const Job& job, const VersionState& version);

/// Returns how many further members each group may lose with all their replicas, counting only
/// replicas at `tiers`. Returns nothing if there are no groups or one of them cannot decode.
std::optional<uint32_t> PeerMargin(const Job& job, const VersionState& version, uint32_t tiers);

}  // namespace holdfast::coord
