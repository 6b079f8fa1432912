#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "storage/base/ids.h"
#include "storage/io/block_file.h"

namespace holdfast {

/// A version's directory under its name after removal.
struct Tombstone {
  uint32_t index = 0;  // of the data directory
  std::string path;
};

/// Renames the version's directory in every data directory and makes that durable, the first one
/// (which holds the seals) before the others: from then on the version does not exist. Appends to
/// `made` what was renamed, also on error. NotFound when no data directory has the version.
Status MakeTombstones(const std::vector<std::unique_ptr<Directory>>& dirs, const std::string& job,
                      VersionId version, std::vector<Tombstone>* made);

/// Deletes what a tombstone holds, and it. Entries the volume did not write go to quarantine.
/// Durable on return; after a crash it can be called again.
Status DeleteTombstone(Directory& dir, const std::string& path);

}  // namespace holdfast
