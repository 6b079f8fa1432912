#pragma once

#include <vector>

#include "coordinator/state/cluster.h"

// The phase of a job: running, ended or finished, and the release of its memory.
//
// A job runs while a node reports a trainer of its current incarnation or a run launches it. It has
// ended when neither holds for `end_grace` and every known node has reported; trainers of a lost
// node count for another half minute. It has finished if all ranks ended with a goodbye or its run
// ended with success. Its memory is released some time later, when a restart needs nothing from
// memory: the newest version is on disk with its parity.

namespace holdfast::coord {

/// `ranks` are all trainers that the node reports.
void OnRanks(Context& context, NodeIndex index, const std::vector<LocalRank>& ranks);

/// A trainer waits until its version is at another tier.
void OnTierWanted(Context& context, const TierWanted& wanted);

/// A run of the job started or ended.
void OnRunStateChanged(Context& context, const RunStateChanged& event);

/// Moves the job to the phase; memory that was released is used again.
void SetPhase(Context& context, Job& job, JobPhase phase);

/// Updates the job's phase after time has passed.
void AdvanceLifecycle(Context& context, Job& job);

}  // namespace holdfast::coord
