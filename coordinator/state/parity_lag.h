#pragma once

#include <cstdint>
#include <vector>

#include "coordinator/state/cluster.h"

// How far parity is behind the saves, by rank. The members of a parity group encode together, so
// the ranks of a group have the same newest version with parity. What each has sealed differs.

namespace holdfast::coord {

/// By rank of the current incarnation; empty: the incarnation has no parity groups. Examines the
/// newest kLagVersionsMax versions.
std::vector<ParityLag> ParityLags(const ReadContext& context, const Job& job);

inline constexpr size_t kLagVersionsMax = 64;

}  // namespace holdfast::coord
