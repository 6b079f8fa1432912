#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/ids.h"
#include "storage/io/block_file.h"

namespace holdfast {

/// A removed version's directory that is not yet deleted.
struct Tombstone {
  uint32_t index = 0;  // of the data directory
  std::string path;
};

/// Renames the version's directory in every data directory and makes the renames durable. The first
/// data directory, which contains the seals, comes first: from its rename on the version does not
/// exist. Appends the renamed directories to `made`, even on error. NotFound when no data directory
/// has the version.
Status MakeTombstones(const std::vector<std::unique_ptr<Directory>>& dirs, const std::string& job,
                      VersionId version, std::vector<Tombstone>* made);

/// Deletes a tombstone and its contents. Entries that the volume did not write go to quarantine.
/// Durable on return; can be repeated after a crash.
Status DeleteTombstone(Directory& dir, const std::string& path);

}  // namespace holdfast
