#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "storage/io/block_file.h"

// The file HOLDFAST in a data directory: whose it is, and which of the volume's directories.

namespace holdfast {

inline constexpr uint32_t kVolumeFormat = 1;

struct VolumeMarker {
  std::string cluster;
  std::string volume;  // random name that all directories of one volume share
  uint32_t index = 0;  // place of this directory in the configured list
  uint32_t count = 0;  // directories the volume has; counts in the first one's marker
  bool operator==(const VolumeMarker&) const = default;
};

/// key = value lines that end in their own CRC-32C.
std::string RenderMarker(const VolumeMarker& marker);
/// DataLoss for anything RenderMarker would not write, Unsupported for a newer format. `where`
/// starts the message.
Result<VolumeMarker> ParseMarker(std::string_view text, const std::string& where);

/// Checks that `dirs` are the directories of one volume of `cluster`, in order and all of them.
/// Empty directories become a new volume; empty ones at the end are added to the volume. Durable on
/// return. FailedPrecondition says which directory is wrong and what to do; then nothing was
/// changed.
Status ClaimDirectories(const std::vector<std::unique_ptr<Directory>>& dirs,
                        const std::string& cluster);

/// For reading only: puts the directories of one volume into the volume's order.
/// FailedPrecondition when one is not Holdfast's, belongs to another volume, or one is missing.
Status OrderDirectories(std::vector<std::unique_ptr<Directory>>* dirs);

}  // namespace holdfast
