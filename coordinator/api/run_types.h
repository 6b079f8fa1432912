#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "storage/base/ids.h"

// Messages about launching workers, as plain values: a user's request, the directive to a node, and
// the state that the node reports.

namespace holdfast::coord {

/// Limits: workers on one node, arguments of a command, and bytes of command and environment.
inline constexpr uint32_t kWorkersMax = 1024;
inline constexpr size_t kCommandArgumentsMax = 4096;
inline constexpr size_t kCommandBytesMax = 256 << 10;
/// Largest number of bytes kept of a worker's last output.
inline constexpr size_t kLastLinesBytesMax = 4096;

/// Action on a job that hangs or is slow while its processes run.
enum class DetectAction : uint8_t {
  kDefault = 0,  // of a run: use the coordinator's configuration
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
  uint32_t world() const { return nodes * ranks_per_node; }
  bool operator==(const RunSpec&) const = default;
};

/// Directive: the workers of a job that the node must run. Workers of another run ID are stopped
/// first.
struct SetWorkers {
  std::string job;
  std::string run_id;
  Rank first_rank;
  uint32_t ranks = 0;  // 0: none
  uint32_t world = 0;
  uint32_t node_rank = 0;
  uint32_t nodes = 0;
  std::string master_address;
  uint32_t master_port = 0;
  uint32_t restarts = 0;  // before this launch
  uint32_t restarts_max = 0;
  std::vector<std::string> command;
  std::vector<std::string> environment;
  std::string directory;
  int64_t grace_ms = 0;
  bool operator==(const SetWorkers&) const = default;
};

enum class WorkerPhase : uint8_t {
  kRunning = 1,
  kEnded = 2,
  kStuck = 3,  // still exists after SIGKILL
};

/// State of a worker, as its node reports it.
struct WorkerState {
  std::string job;
  std::string run_id;
  Rank rank;
  WorkerPhase phase = WorkerPhase::kRunning;
  uint32_t pid = 0;
  int32_t exit_code = 0;
  int32_t signal = 0;  // not 0: the signal that ended the process
  int64_t ended_ago_ms = 0;
  std::string last_lines = {};  // the end of its output
  bool operator==(const WorkerState&) const = default;
};

}  // namespace holdfast::coord
