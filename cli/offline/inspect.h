#pragma once

#include <string>

#include "cli/core/command.h"
#include "storage/format/seal.h"

// What `inspect` prints for one path.

namespace holdfast::cli {

struct InspectRequest {
  std::string path;
  bool deep = false;
};

/// Inspects a safetensors file (image, part, foreign), a seal or a data directory's marker.
Result<ExitCode> InspectFile(Context& context, const InspectRequest& request);
/// Inspects a version's directory, a job's, or a data directory.
Result<ExitCode> InspectDirectory(Context& context, const InspectRequest& request);

/// Lines of "name: value", values in one column.
class KeyValues {
 public:
  void Add(std::string name, std::string value) {
    rows_.emplace_back(std::move(name), std::move(value));
  }
  std::string Render() const;

 private:
  std::vector<std::pair<std::string, std::string>> rows_;
};

/// Returns identity, length, digest and parts of a seal.
Json SealJson(const ShardSeal& seal);
void AddSeal(const ShardSeal& seal, KeyValues& values);

}  // namespace holdfast::cli
