#pragma once

#include <cstdint>
#include <optional>

#include "coordinator/state/job.h"

// What parity groups mean for a version: counting, never bytes. A group survives as long as no
// stripe of it misses more than `parity` of its segments.

namespace holdfast::coord {

/// The node with this number in the plan of `incarnation`, which has one.
const PlannedMember& MemberAt(const Job& job, Incarnation incarnation, uint32_t number);

/// Tiers where a copy of a shard counts, as a mask of TierBit.
inline constexpr uint32_t kAnyTier = TierBit(Tier::kMemory) | TierBit(Tier::kDisk);
/// With the tiers: copies that are damaged count as well, as the last resort of who decodes. What
/// they have left may do, since two are seldom bad at the same place. Never for what is promised.
inline constexpr uint32_t kDamagedToo = 1U << 31;

/// The member has its ranks' shards of the version, or its parity shard, at one of `tiers`.
bool HasData(const Job& job, const VersionState& version, uint32_t number, uint32_t tiers);
bool HasParity(const Job& job, const VersionState& version, uint32_t number, uint32_t tiers);

/// Segments that the stripe of the group that misses most does: a member's data is part of all
/// stripes but those whose parity it keeps.
uint32_t Erasures(const Job& job, const VersionState& version, uint32_t group, uint32_t tiers);

/// What a group has can be decoded from: the version is committed where parity is kept.
bool MayDecode(const VersionState& version);

/// Every member of every group holds its data and its parity at a tier, memory or disk, at which
/// the version is committed: it may be committed at peer.
bool IsCompleteAtPeer(const Job& job, const VersionState& version);

/// The group of `rank` can decode its shard from what is at `tiers`.
bool CanDecode(const Job& job, const VersionState& version, Rank rank, uint32_t tiers = kAnyTier);

/// Some node has a copy of the rank's shard, or its group can decode it.
bool IsAvailable(const Job& job, const VersionState& version, Rank rank, uint32_t tiers = kAnyTier);

/// IsAvailable of every rank.
bool IsWhole(const Job& job, const VersionState& version);
/// The same, counting damaged copies too.
bool MayBeWhole(const Job& job, const VersionState& version);

/// How many members each group may still lose with all that they have, counting only what is at
/// `tiers`; nothing when one cannot decode any more, or there are no groups.
std::optional<uint32_t> PeerMargin(const Job& job, const VersionState& version, uint32_t tiers);

/// A version of the current incarnation whose parity may be in the making: its copies in memory
/// count although newer ones are committed there.
bool IsOnItsWayToPeer(const Job& job, const VersionState& version);

/// Some version from the peer target on has all its parity and only waits for the last word that a
/// rank's shard is in memory.
bool ParityAwaitsMemory(const Job& job);

}  // namespace holdfast::coord
