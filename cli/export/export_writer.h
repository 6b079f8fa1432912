#pragma once

#include <map>
#include <string>
#include <vector>

#include "cli/core/progress.h"
#include "cli/export/export_layout.h"
#include "cli/export/target.h"
#include "cli/shards/shard_source.h"

// Reads a version for an export: first the headers of its shards, then their bytes, which go
// directly to their places in the files. Memory: the headers, and 16 chunks for each shard that is
// being read.

namespace holdfast::cli {

/// The headers of a version's shards, which are read before the tensors.
struct ExportHeaders {
  std::vector<ParsedImage> shards;  // by rank
  TorchNotes notes;
  /// By rank: the complete extras of the PyTorch client.
  std::vector<std::map<std::string, std::string>> extras;
};

/// Reads the headers of all shards. Afterwards `plan` names the replicas that could be read.
/// `keep_extras`: keeps more extras than `notes` needs.
Result<ExportHeaders> ReadHeaders(RestoreSource& source, RestorePlan& plan, bool keep_extras,
                                  Progress& progress);

/// Returns the number of bytes that WriteTensors() reads.
uint64_t BytesToRead(const ExportLayout& layout, const RestorePlan& plan);

/// Writes the files, complete and synced, under temporary names. The caller publishes them.
Result<std::vector<TargetFile>> WriteTensors(RestoreSource& source, RestorePlan& plan,
                                             const ExportLayout& layout, const TargetFolder& target,
                                             Progress& progress);

/// Writes a small file, complete and synced, under its temporary name.
Result<TargetFile> WriteSmallFile(const TargetFolder& target, const std::string& name,
                                  std::string_view bytes);

}  // namespace holdfast::cli
