#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "storage/format/image.h"
#include "storage/format/seal.h"

// Files of shards in any directory, looked at one by one: a directory need not be whole, nor part
// of a volume.

namespace holdfast::cli {

/// How the files beside a seal agree with it.
struct SealedFilesCheck {
  uint64_t chunks_checked = 0;      // with --deep
  std::vector<std::string> absent;  // parts that are not in this directory
  Status status;                    // first damage found: names file and chunk
};

/// Checks the parts of `seal` that lie in `dir`: lengths, part headers and, deep, the bytes of
/// every chunk that lies here whole. Memory: one chunk. `progress` gets the bytes of each chunk.
SealedFilesCheck CheckSealedFiles(const std::string& dir, const ShardSeal& seal, bool deep,
                                  const std::function<void(uint64_t)>& progress);

Result<ShardSeal> ReadSealFile(const std::string& path);

/// The parsed header of a safetensors file, and how long the file is.
Result<ParsedImage> ReadImageHeader(const std::string& path);

/// The digest of a file's bytes, as a seal of it would have.
Result<uint64_t> DigestOfFile(const std::string& path,
                              const std::function<void(uint64_t)>& progress);

}  // namespace holdfast::cli
