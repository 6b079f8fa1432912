#pragma once

#include <string>

#include "coordinator/state/cluster.h"

// Explains to users and operators why a version cannot be restored: which shards are missing, where
// they were last, which parity groups lost too much, and which nodes are not attached.

namespace holdfast::coord {

/// Returns why the version is not available: its missing shards, groups, nodes, and damage.
std::string MissingText(const ReadContext& context, const Job& job, const VersionState& version);

/// Returns why no version of the job can be restored.
Status WhyNothingRestorable(const ReadContext& context, const Job& job);

/// Returns why this version cannot be restored.
Status WhyNotRestorable(const ReadContext& context, const Job& job, VersionId wanted);

/// Returns the refusal of a rank whose world differs from that of the version.
Status WorldMismatch(const Job& job, const VersionState& version);

}  // namespace holdfast::coord
