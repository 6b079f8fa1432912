#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <string>

#include "base/ids.h"
#include "base/life.h"

namespace holdfast {

/// What proves a version that the coordinator has committed: shards of all ranks whose digests
/// combine to `digest` are the committed ones, and all of them.
struct VersionCommit {
  std::string job;
  LifeId life;  // that the seals of the version name
  VersionId version;
  uint32_t world = 0;
  uint64_t digest = 0;  // CommitDigest(); never 0
  auto operator<=>(const VersionCommit&) const = default;
};

/// Returns the commit digest of a version: the CRC-64/XZ of the number of ranks and of the digests
/// of their shards, in the order of the ranks. Never 0, which stands for "not known".
uint64_t CommitDigest(std::span<const uint64_t> digests);

}  // namespace holdfast
