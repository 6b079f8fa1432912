#pragma once

#include <map>
#include <string>
#include <vector>

#include "client/cli/export_layout.h"
#include "client/cli/progress.h"
#include "client/cli/shard_source.h"
#include "client/cli/target.h"

// Reading a version for an export: first the headers of its shards, then their bytes, straight to
// their places. Memory: the headers, and a chunk for each shard that is being read.

namespace holdfast::cli {

/// What is known of a version before its bytes are read.
struct ExportHeaders {
  std::vector<ParsedImage> shards;  // by rank
  TorchNotes notes;
  /// By rank: the PyTorch client's extras, whole.
  std::vector<std::map<std::string, std::string>> extras;
};

/// `plan` then names the copies that could be read. `keep_extras`: not only what `notes` needs.
Result<ExportHeaders> ReadHeaders(RestoreSource& source, RestorePlan& plan, bool keep_extras,
                                  Progress& progress);

/// Bytes that WriteTensors will read.
uint64_t BytesToRead(const ExportLayout& layout, const RestorePlan& plan);

/// Writes the files, complete and synced, under temporary names: to be published.
Result<std::vector<TargetFile>> WriteTensors(RestoreSource& source, RestorePlan& plan,
                                             const ExportLayout& layout, const TargetFolder& target,
                                             Progress& progress);

/// A small file, complete and synced, under its temporary name.
Result<TargetFile> WriteSmallFile(const TargetFolder& target, const std::string& name,
                                  std::string_view bytes);

}  // namespace holdfast::cli
