#pragma once

#include "coordinator/state/cluster.h"

// Adoption: an operator makes versions of another life of the store count in this one.
//
// A version can be adopted if it is complete (adoptable.h): attached nodes have every rank's shard,
// or their parity groups can decode it. Its number must also be free here: no incarnation and no
// version of this store has it, and no later incarnation abandoned it. Its parity groups are
// adopted with it, and repairs then restore what they lack. One call adopts an incarnation from one
// life only. The newest adopted version is pinned if the job has started again
// since, so that retention keeps it.

namespace holdfast::coord {

/// Adopts the versions that the operator names, or only lists them.
void OnAdoptRequested(Context& context, const AdoptRequested& event);

/// If the options direct it, adopts the versions that have become complete. Call it at each tick.
void AdoptWhatIsComplete(Context& context);

}  // namespace holdfast::coord
