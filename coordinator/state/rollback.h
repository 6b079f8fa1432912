#pragma once

#include "coordinator/state/cluster.h"

// Rollback: ranks of an incarnation that has committed versions restore one of them, or an older
// one, while the job runs. The restore decision of the incarnation does not change. If it has none,
// a rollback to a version of an earlier incarnation becomes its restore decision.
//
// A request for the newest version waits until every rank has made it, since all ranks must get the
// same version. A rank that names a version is answered at once. Newer pending versions are
// aborted: some ranks saved them before the rollback, and the others must not complete them after
// it.

namespace holdfast::coord {

/// Answers the requests for a rollback that can be answered.
void AdvanceRollback(Context& context, Job& job);

}  // namespace holdfast::coord
