#pragma once

#include <optional>
#include <string>

#include "coordinator/state/cluster.h"
#include "storage/parity/group_plan.h"

// The parity groups of an incarnation: when they are planned, and how agents see them.
//
// The groups are planned once, when all ranks have joined and every agent has reported its slot
// sizes and its peer address. groups.h decides which node is in which group. The plan holds for the
// incarnation and is erased with its last version. Only the newest plan stays, since the next plan
// keeps its positions. rehome.h replaces members that are lost for good.

namespace holdfast::coord {

/// Returns why the job has no parity groups; empty if it has a plan or one can be made.
std::string WhyNoPeers(const ReadContext& context, const Job& job);

/// Plans the parity groups once all ranks have joined. The plan holds for the rest of the
/// incarnation.
void PlanPeers(Context& context, Job& job);

/// Builds the lookup tables for the plan of an incarnation.
void IndexGroups(Context& context, Job& job, Incarnation incarnation);

/// Erases plans of incarnations that have no version any more. The last plan stays, since the next
/// one keeps its positions.
void PrunePlans(Context& context, Job& job);

/// Returns the group as it is sent to agents. With `version`, the group states which members have
/// all their shards of the version, counting damaged replicas. Returns nothing when the record of
/// the plan describes no valid group.
std::optional<GroupPlan> GroupOf(const ReadContext& context, const Job& job,
                                 Incarnation incarnation, uint32_t group,
                                 const VersionState* version);

/// Schedules the job state for the members of the node's groups after the node was attached or
/// lost, or changed its address.
void SendGroupsOf(Context& context, NodeIndex node);

}  // namespace holdfast::coord
