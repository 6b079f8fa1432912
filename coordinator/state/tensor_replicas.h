#pragma once

#include "coordinator/state/cluster.h"

// Compares tensor replicas: each rank also saves samples of tensors that other ranks save, and the
// checksums of the same bytes are compared when a version is committed.
//
// Bytes that differ are a dispute. It names the ranks that differ from the majority, or all of them
// if there is none. A dispute stays with the versions that follow until the same bytes are equal
// again. A finding is recorded when a rank differs for the first time.

namespace holdfast::coord {

/// Compares the samples of the version, updates the disputes of the job, and copies them to the
/// version.
void CompareTensorReplicas(Context& context, Job& job, VersionState& version);

/// Records a finding that the version, which must be disputed, is restored.
void ReportDisputedRestore(Context& context, const Job& job, const VersionState& version);

}  // namespace holdfast::coord
