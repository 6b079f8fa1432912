#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/ids.h"
#include "storage/format/seal.h"
#include "storage/io/block_file.h"

namespace holdfast {

/// Moves `path` (file or directory) to quarantine/<path with '+' for '/'>.<random> in the same data
/// directory and syncs both directories. Never replaces or deletes a file.
Status MoveToQuarantine(Directory& dir, const std::string& path);

/// Moves all files of one shard to quarantine. The seal is moved last: a crash in between leaves a
/// seal without data, which the next start moves too.
Status QuarantineShard(const std::vector<std::unique_ptr<Directory>>& dirs, const ShardKey& key);

}  // namespace holdfast
