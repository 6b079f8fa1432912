#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "storage/base/ids.h"
#include "storage/base/job_name.h"

// The names a volume gives to what it stores, and the way back from a name to its meaning.

namespace holdfast {

inline constexpr std::string_view kMarkerName = "HOLDFAST";
inline constexpr std::string_view kQuarantineName = "quarantine";
/// Made by mkfs at the root of a file system; never touched.
inline constexpr std::string_view kLostAndFoundName = "lost+found";

/// "job/v3-120"
std::string VersionPath(const std::string& job, VersionId version);
/// "rank-7.seal", "parity-2.seal"
std::string SealName(Rank rank);
/// "rank-7.safetensors" for the only part, "rank-7.part-2.safetensors" for one of several.
std::string PartName(Rank rank, uint32_t part, uint32_t part_count);
/// `name` with ".tmp." and random letters: what an unpublished file is called.
std::string TemporaryName(const std::string& name);
/// "v3-120" → "v3-120.deleted.1f…": what a version is called from its removal on.
std::string TombstoneName(const std::string& version_name);

/// What the name of a file in a version directory says.
struct ShardFileName {
  Rank rank;
  bool seal = false;
  std::optional<uint32_t> part;  // only in "part-<p>"
  bool temporary = false;
};
/// Nothing when the volume would not have written such a name.
std::optional<ShardFileName> ParseShardFileName(std::string_view name);

/// What the name of a directory in a job's directory says.
struct VersionDirectoryName {
  VersionId version;
  bool tombstone = false;
};
std::optional<VersionDirectoryName> ParseVersionDirectoryName(std::string_view name);

/// True for what a crash can leave at the root of a data directory and nobody misses: an unfinished
/// marker ("HOLDFAST.tmp.<hex>") and the scratch file of storage/io (".probe-<hex>").
bool IsRootTemporary(std::string_view name);

}  // namespace holdfast
