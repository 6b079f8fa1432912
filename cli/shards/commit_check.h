#pragma once

#include <map>
#include <string>
#include <utility>

#include "cli/shards/shard_check.h"
#include "storage/format/commit.h"

// Whether the shards that `verify` found are those that were committed.

namespace holdfast::cli {

/// What is known of the commits of versions, by job and version.
using Commits = std::map<std::pair<std::string, VersionId>, VersionCommit>;

/// Compares the digests of each version's shards with its commit digest. The report counts the
/// versions whose shards are the committed ones, and gets a text for each version whose shards are
/// not. A version of which the report lacks a rank's shard is not compared.
void CheckCommits(const Commits& commits, CheckReport& report);

}  // namespace holdfast::cli
