#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "storage/base/ids.h"

// Launching workers, as plain values: what a user asks for, what a node is told, what it says back.

namespace holdfast::coord {

/// Workers of one node at most; words of a command, and the bytes of command and environment.
inline constexpr uint32_t kWorkersMax = 1024;
inline constexpr size_t kCommandWordsMax = 4096;
inline constexpr size_t kCommandBytesMax = 256 << 10;
/// What is kept of what a worker said before it ended.
inline constexpr size_t kLastLinesBytesMax = 4096;

/// What is done about a job that does not do well although its processes run.
enum class DetectAction : uint8_t {
  kDefault = 0,  // of a run: as the coordinator's configuration has it
  kOff = 1,
  kAlert = 2,    // incidents, for a person to look at
  kRestart = 3,  // and hangs that last are restarted
};

/// What a user wants to have run.
struct RunSpec {
  std::string job;
  std::vector<std::string> command;
  std::vector<std::string> environment;  // NAME=value, beside what the agent has
  std::string directory;                 // absolute
  uint32_t nodes = 1;
  uint32_t ranks_per_node = 1;
  uint32_t spares = 0;  // nodes that stand by
  uint32_t restarts_max = 10;
  int64_t grace_ms = 10'000;  // between SIGTERM and SIGKILL
  /// So many newly committed versions make the budget of restarts full again; 0: never.
  uint32_t refill_versions = 10;
  DetectAction detect_action = DetectAction::kDefault;
  int64_t hang_after_ms = 0;  // a hang so old is restarted; 0: the coordinator's configuration
  uint32_t world() const { return nodes * ranks_per_node; }
  bool operator==(const RunSpec&) const = default;
};

/// The workers of a job that the node shall have. Those of another run id are stopped first.
struct WorkersOrder {
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
  bool operator==(const WorkersOrder&) const = default;
};

enum class WorkerPhase : uint8_t {
  kRunning = 1,
  kEnded = 2,
  kStuck = 3,  // was killed and does not end
};

/// A process of a job that a node launched.
struct WorkerState {
  std::string job;
  std::string run_id;
  Rank rank;
  WorkerPhase phase = WorkerPhase::kRunning;
  uint32_t pid = 0;
  int32_t exit_code = 0;
  int32_t signal = 0;  // not 0: what ended it
  int64_t ended_ago_ms = 0;
  std::string last_lines = {};  // of what it said before it ended
  bool operator==(const WorkerState&) const = default;
};

}  // namespace holdfast::coord
