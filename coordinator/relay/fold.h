#pragma once

#include "coordinator/api/relay.pb.h"

namespace holdfast::coord::relay {

/// Moves plain replicas of the reports of a batch into `folded`: one entry for each version and
/// tier, with a list of ranks and digests. Replicas that have more fields, or that the coordinator
/// would refuse, stay in their report.
void FoldReplicas(coordinator::ForwardRequest* batch);

}  // namespace holdfast::coord::relay
