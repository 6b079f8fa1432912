#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "storage/format/image.h"
#include "storage/format/seal.h"

// Checks files of shards in any directory, one by one. The directory need not be complete or part
// of a volume.

namespace holdfast::cli {

/// The result of comparing the files next to a seal with the seal.
struct SealedFilesCheck {
  uint64_t chunks_checked = 0;      // with --deep
  std::vector<std::string> absent;  // parts that are not in this directory
  Status status;                    // the first damage, with file and chunk
};

/// Checks the parts of `seal` that are in `dir`: lengths, part headers and, with `deep`, the bytes
/// of every chunk whose parts all exist. Memory: one chunk. `progress` gets the bytes of each
/// chunk.
SealedFilesCheck CheckSealedFiles(const std::string& dir, const ShardSeal& seal, bool deep,
                                  const std::function<void(uint64_t)>& progress);

Result<ShardSeal> ReadSealFile(const std::string& path);

/// Returns the parsed header of a safetensors file, with the file's length.
Result<ParsedImage> ReadImageHeader(const std::string& path);

/// Returns the digest of a file's bytes, computed as for a seal.
Result<uint64_t> DigestOfFile(const std::string& path,
                              const std::function<void(uint64_t)>& progress);

}  // namespace holdfast::cli
