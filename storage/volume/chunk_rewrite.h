#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "storage/format/seal.h"
#include "storage/io/block_file.h"

namespace holdfast {

/// Implements Volume::RewriteChunk in the files of the published shard that `seal` describes.
Status RewriteChunk(const std::vector<std::unique_ptr<Directory>>& dirs, const ShardSeal& seal,
                    uint64_t index, std::span<const std::byte> bytes);

}  // namespace holdfast
