#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

// Runs: what a user asks `holdfast run` for.

namespace holdfast {

/// Action on a job that hangs or is slow while its processes run.
enum class DetectAction : uint8_t {
  kDefault = 0,  // only in a RunSpec: the coordinator's configuration applies
  kOff = 1,
  kAlert = 2,    // open incidents only
  kRestart = 3,  // also restart jobs whose hang lasts
};

/// A user's request for a run.
struct RunSpec {
  std::string job;
  std::vector<std::string> command;
  std::vector<std::string> environment;  // NAME=value, in addition to the agent's
  std::string directory;                 // absolute
  uint32_t nodes = 1;
  uint32_t ranks_per_node = 1;
  uint32_t spares = 0;  // nodes without workers that can replace a failed node
  uint32_t restarts_max = 10;
  int64_t grace_ms = 10'000;  // between SIGTERM and SIGKILL
  /// Number of newly committed versions that refill the restart budget; 0: never.
  uint32_t refill_versions = 10;
  DetectAction detect_action = DetectAction::kDefault;
  int64_t hang_after_ms = 0;  // age of a hang that triggers a restart; 0: the coordinator's setting
  /// The user of the workers, who owns the job. Absent: an earlier version recorded the run.
  std::optional<uint32_t> uid = {};
  uint32_t world() const { return nodes * ranks_per_node; }
  bool operator==(const RunSpec&) const = default;
};

}  // namespace holdfast
