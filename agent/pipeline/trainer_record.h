#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"

// The record of which process has which rank's memory mapped. With it, a restarted agent still
// refuses a second process while the first is alive. The file is in the run directory and is valid
// for one boot: it is not synced, and an absent or torn file means that no trainer is known.

namespace holdfast::agent {

struct TrainerRecord {
  std::string job;
  Rank rank;
  pid_t pid = 0;
  uint64_t start_ticks = 0;  // distinguishes the process from a later one with the same PID
  std::optional<Incarnation> incarnation = {};  // the one it joined, if known
  bool operator==(const TrainerRecord&) const = default;
};

/// Replaces the file atomically.
Status WriteTrainers(const std::string& path, const std::vector<TrainerRecord>& records);
/// Returns the valid records; skips malformed lines.
std::vector<TrainerRecord> ReadTrainers(const std::string& path);

}  // namespace holdfast::agent
