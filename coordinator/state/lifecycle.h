#pragma once

#include <vector>

#include "coordinator/state/cluster.h"

// The phase of a job: running, ended or finished, and the release of its memory.
//
// A job runs while a node reports a trainer of its current incarnation or a run of the job is
// active. The job has ended when neither has been true for `end_grace` and the recovery barrier is
// open; trainers of a lost node count for another half minute. A job that has ended is finished if
// all ranks ended with a goodbye, its run ended with success, or an operator stopped the run. Its
// memory is released some time later, once a restart needs nothing from memory: the newest version
// is on disk with its parity.

namespace holdfast::coord {

/// Records the trainers of a node. `ranks` is the complete list that the node reports.
void OnRanks(Context& context, NodeIndex index, const std::vector<LocalRank>& ranks);

/// Records that a trainer waits until its version is at another tier.
void OnTierWanted(Context& context, const TierWanted& wanted);

/// Records that a run of the job started or ended.
void OnRunStateChanged(Context& context, const RunStateChanged& event);

/// Moves the job to the phase, and stores it. Nodes may use memory again that was released.
void SetPhase(Context& context, Job& job, JobPhase phase);

/// Updates the job's phase as time passes, and releases the memory when it is due.
void AdvanceLifecycle(Context& context, Job& job);

}  // namespace holdfast::coord
