#pragma once

#include <cstdint>
#include <optional>

#include "coordinator/state/job.h"

// What parity groups mean for a version: counting, never bytes. A group survives as long as at most
// `parity` of its members miss anything.

namespace holdfast::coord {

/// The node with this number in the plan of `incarnation`, which has one.
const PlannedMember& MemberAt(const Job& job, Incarnation incarnation, uint32_t number);

/// The member has all its shards of the version, its ranks' and its parity, in memory.
bool IsPresent(const Job& job, const VersionState& version, uint32_t number);

/// Numbers of the members of `group` that are not present.
std::vector<uint32_t> AbsentMembers(const Job& job, const VersionState& version, uint32_t group);

/// Every member of every group is present, and the version is committed at memory: it may be
/// committed at peer.
bool IsCompleteAtPeer(const Job& job, const VersionState& version);

/// The group of `rank` can decode its shard.
bool CanDecode(const Job& job, const VersionState& version, Rank rank);

/// Some node has a copy of the rank's shard, or its group can decode it.
bool IsAvailable(const Job& job, const VersionState& version, Rank rank);

/// IsAvailable of every rank.
bool IsWhole(const Job& job, const VersionState& version);

/// How many members each group may still lose; nothing when one cannot decode any more, or the
/// version was never committed at peer.
std::optional<uint32_t> PeerMargin(const Job& job, const VersionState& version);

/// A version of the current incarnation whose parity may be in the making: its copies in memory
/// count although newer ones are committed there.
bool IsOnItsWayToPeer(const Job& job, const VersionState& version);

/// Some version from the peer target on has all its parity and only waits for the last word that a
/// rank's shard is in memory.
bool ParityAwaitsMemory(const Job& job);

}  // namespace holdfast::coord
