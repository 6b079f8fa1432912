#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/ids.h"
#include "storage/format/seal.h"
#include "storage/io/block_file.h"
#include "storage/volume/volume.h"

// Reading published shards. All of it is read-only and thread-safe.

namespace holdfast {

using DirectoryList = std::vector<std::unique_ptr<Directory>>;

/// Reads the seal of `key`. NotFound when there is none; DataLoss when it is damaged, belongs to
/// another shard, or needs more data directories than `dirs` has; Unsupported for a newer format.
Result<ShardSeal> LoadSeal(const DirectoryList& dirs, const ShardKey& key);

/// Checks that every file of the shard exists with the right length. DataLoss names the file that
/// does not. Opens the files but reads no bytes.
Status CheckFiles(const DirectoryList& dirs, const ShardSeal& seal);
/// Checks the files as CheckFiles does, and the header of each file against its checksum.
Status CheckStructure(const DirectoryList& dirs, const ShardSeal& seal);
/// Verifies every byte, with a fixed amount of memory.
Status CheckDeep(const DirectoryList& dirs, const ShardSeal& seal, const IoOptions& io);
/// Implements Volume::StreamShard.
Status StreamImage(const DirectoryList& dirs, const ShardSeal& seal, const IoOptions& io,
                   const std::function<Status(uint64_t, std::span<const std::byte>)>& sink);

/// Checks that `bytes`, read from the shard's files, are its chunk `index`. DataLoss names the
/// files.
Status CheckChunk(const DirectoryList& dirs, const ShardSeal& seal, uint64_t index,
                  std::span<const std::byte> bytes);

/// Implements Volume::OpenChunks. `dirs` must outlive the result.
Result<std::unique_ptr<ShardChunks>> OpenShardChunks(const DirectoryList& dirs, ShardSeal seal);

/// Implements Volume::ReadShard.
Status ReadImage(const DirectoryList& dirs, const ShardSeal& seal, const IoOptions& io,
                 std::span<std::byte> into, const std::function<void(uint64_t)>& progress);

}  // namespace holdfast
