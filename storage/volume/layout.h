#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/ids.h"
#include "base/job_name.h"

// The names of a volume's files and directories, and the parsing of these names.

namespace holdfast {

inline constexpr std::string_view kMarkerName = "HOLDFAST";
inline constexpr std::string_view kQuarantineName = "quarantine";
/// Made by mkfs at the root of a file system; the volume ignores it.
inline constexpr std::string_view kLostAndFoundName = "lost+found";

/// Returns e.g. "job/v3-120".
std::string VersionPath(const std::string& job, VersionId version);
/// Returns e.g. "rank-7.seal" or "parity-2.seal".
std::string SealName(Rank rank);
/// Returns "rank-7.safetensors" for the only part, "rank-7.part-2.safetensors" for one of several.
std::string PartName(Rank rank, uint32_t part, uint32_t part_count);
/// Appends ".tmp." and random digits to `name`: the name of an unpublished file.
std::string TemporaryName(const std::string& name);
/// Returns the name of a version's directory from its removal on: "v3-120" →
/// "v3-120.deleted.1f…".
std::string TombstoneName(const std::string& version_name);

/// The parsed name of a file in a version directory.
struct ShardFileName {
  Rank rank;
  bool seal = false;
  std::optional<uint32_t> part;  // only in "part-<p>"
  bool temporary = false;
};
/// Returns nothing for a name that a volume does not write.
std::optional<ShardFileName> ParseShardFileName(std::string_view name);

/// The parsed name of a directory in a job's directory.
struct VersionDirectoryName {
  VersionId version;
  bool tombstone = false;
};
std::optional<VersionDirectoryName> ParseVersionDirectoryName(std::string_view name);

/// Returns true for the disposable files that a crash can leave at the root of a data directory: an
/// unfinished marker ("HOLDFAST.tmp.<hex>") and the scratch file of storage/io (".probe-<hex>").
bool IsRootTemporary(std::string_view name);

}  // namespace holdfast
