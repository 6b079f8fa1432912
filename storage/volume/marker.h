#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "storage/io/block_file.h"

// The file HOLDFAST in a data directory: the directory's cluster and volume, and its index.

namespace holdfast {

inline constexpr uint32_t kVolumeFormat = 1;

struct VolumeMarker {
  std::string cluster;
  std::string volume;  // a random name that all directories of one volume share
  uint32_t index = 0;  // the index of this directory in the configured list
  uint32_t count = 0;  // of the volume's directories; the first directory's marker is authoritative
  bool operator==(const VolumeMarker&) const = default;
};

/// Returns key = value lines that end in their own CRC-32C.
std::string RenderMarker(const VolumeMarker& marker);
/// Parses a marker. DataLoss for anything that RenderMarker does not write, Unsupported for a newer
/// format. `where` starts the message.
Result<VolumeMarker> ParseMarker(std::string_view text, const std::string& where);

/// Checks that `dirs` are all the directories of one volume of `cluster`, in the volume's order. If
/// all are empty, they become a new volume; empty directories at the end are added to the volume.
/// The markers are durable on return. FailedPrecondition names the wrong directory and the remedy;
/// in that case nothing was changed.
Status ClaimDirectories(const std::vector<std::unique_ptr<Directory>>& dirs,
                        const std::string& cluster);

/// The beginning of the volume names of shared tiers. A node does not use such a directory as its
/// own data directory.
inline constexpr std::string_view kSharedVolumePrefix = "shared-";
/// Checks that `dir` belongs to the shared tier `volume` (with kSharedVolumePrefix) of `cluster`.
/// An empty directory becomes that tier; several nodes may do this at once. Durable on return.
Status ClaimShared(Directory& dir, const std::string& cluster, const std::string& volume);

/// Puts the directories of one volume into the volume's order, for reading only. FailedPrecondition
/// when one is not Holdfast's or belongs to another volume, or when one is missing.
Status OrderDirectories(std::vector<std::unique_ptr<Directory>>* dirs);

}  // namespace holdfast
