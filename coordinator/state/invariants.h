#pragma once

#include <optional>

#include "coordinator/state/cluster.h"

// Checks of the data at the moments on which others rely: before a decision is stored, and when
// data is indexed. A violation goes to options.invariants; the coordinator then stores nothing
// more.

namespace holdfast::coord {

/// Whether each rank of the world is in the image of exactly one member, no node is a member twice,
/// and each group has fewer rows of parity than members.
bool IsValidPlan(const LineageRecord& lineage);

/// Before the first commit of the version at `tier`: recounts the counters of the version.
void CheckCommit(const ReadContext& context, const Job& job, const VersionState& version,
                 Tier tier);

/// Before a record of a version is stored. `committed_tier_bit`: the tier that it commits; 0: none.
void CheckVersionRecord(const ReadContext& context, const Job& job, const VersionRecord& record,
                        uint32_t committed_tier_bit);

/// Before the decision to restore the candidate is stored. The candidate may be of the running
/// incarnation: a rank may start again and request a restore after the others saved steps.
void CheckDecision(const ReadContext& context, const Job& job);

/// After retention. `floor`: the newest restorable version before it.
void CheckRetention(const ReadContext& context, const Job& job, std::optional<VersionId> floor);

/// Before a plan is stored, and after each change of it.
void CheckParityPlan(const ReadContext& context, const LineageRecord& lineage);

/// After PlaceInGroups() without an earlier plan: no group has more than its even share of a
/// failure domain.
void CheckDomains(const ReadContext& context, const LineageRecord& lineage);

/// After the lookup tables of a plan were made or changed.
void CheckGroupIndex(const ReadContext& context, const LineageRecord& lineage,
                     const GroupIndex& groups);

/// After the rules that follow an event. Takes constant time.
void CheckJob(const ReadContext& context, const Job& job);

}  // namespace holdfast::coord
