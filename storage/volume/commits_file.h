#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "storage/format/commit.h"
#include "storage/io/block_file.h"

// The file HOLDFAST.commits next to the marker of a volume's first data directory. It records which
// versions of the node's shards the coordinator has committed. docs/formats/volume.md describes the
// format.

namespace holdfast {

/// Most commits in the file. An agent keeps those of the newest versions.
inline constexpr size_t kCommitsMax = 4096;

/// Returns one line for each commit, and a last line with the CRC-32C of the lines before it.
/// `commits` are in ascending order.
std::string RenderCommits(const std::vector<VersionCommit>& commits);
/// Parses the file. DataLoss for anything that RenderCommits does not write, Unsupported for a
/// newer format.
Result<std::vector<VersionCommit>> ParseCommits(std::string_view text);

/// Reads the file. Returns no commits when there is none.
Result<std::vector<VersionCommit>> ReadCommits(Directory& dir);
/// Replaces the file. Durable on return; a crash leaves the old file or the new one.
Status WriteCommits(Directory& dir, const std::vector<VersionCommit>& commits);

}  // namespace holdfast
