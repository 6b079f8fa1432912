#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "coordinator/contract/directives.h"
#include "coordinator/contract/reports.h"
#include "coordinator/contract/runs.h"
#include "coordinator/state/events.h"

// Events of runs, in addition to the events of nodes (coordinator/state/events.h).

namespace holdfast::coord {

struct RunRequested {
  std::optional<RequestId> request;
  RunSpec spec;
};

struct StopRequested {
  std::optional<RequestId> request;
  std::string job;
  int64_t deadline_ms = 0;  // longest wait for the version on disk; 0: do not wait
};

struct QuarantineRequested {
  std::optional<RequestId> request;
  std::string node;
  bool set = true;
  std::string why;
  bool test = false;  // of a release: the node must pass its self-test first
};

/// The self-test of a node has ended.
struct SelfTested {
  struct Part {
    std::string part;  // "cpu", "memory", "disk /data0"
    bool failed = false;
    std::string what;
  };
  std::string node;
  uint64_t agent_start = 0;
  uint64_t number = 0;
  std::vector<Part> parts;  // empty: the agent cannot test the node
};

/// An operator has handled an incident; the supervisor takes no further action.
struct AcknowledgeRequested {
  std::optional<RequestId> request;
  uint64_t id = 0;
  std::string why;
};

/// A run of restart.command has ended.
struct RestartCommandEnded {
  uint64_t incident = 0;
  bool ok = false;
  std::string how;  // "ended with exit code 1", …
};

/// The action that a fault calls for.
enum class FaultAction : uint8_t {
  kNote,              // only record an incident
  kRestart,           // stop all ranks and start them again
  kRestartElsewhere,  // the same, and avoid the blamed nodes if others are available
};

/// The detector has found or suspects a fault of a job.
struct FaultDetected {
  std::string job;
  Incarnation incarnation;
  std::string kind;  // "non-communication hang", …
  std::string what;  // one sentence
  std::vector<std::string> evidence;
  std::vector<Rank> ranks;
  std::vector<std::string> nodes;
  FaultAction action = FaultAction::kNote;
  bool dead = false;       // processes have ended
  bool hang = false;       // no progress; the event is repeated while the hang lasts
  bool stuck = false;      // of a hang: every rank waits in communication, none is elsewhere
  bool suspected = false;  // of a hang: it may still be a pause; `action` applies if it is a hang
  int64_t lasting_ms = 0;  // of a hang: its age
  int64_t longest_pause_ms = 0;  // the longest pause after which the job continued on its own
  uint64_t step = 0;             // the newest step that any rank reached
  int64_t since_ms = 0;          // time since the last sign of health
};

inline constexpr uint32_t kGpuUnknown = ~0U;

/// The driver of a node has reported a GPU error.
struct GpuFailed {
  std::string node;
  uint64_t agent_start = 0;
  uint64_t number = 0;            // the agent's sequence number; an error may be reported twice
  uint32_t device = kGpuUnknown;  // index on the node
  std::string bus_id;             // empty: not known
  uint32_t xid = 0;
  int64_t ago_ms = 0;
  std::vector<std::string> jobs;  // jobs with ranks on the node
};

using RunEvent =
    std::variant<RunRequested, StopRequested, QuarantineRequested, AcknowledgeRequested,
                 RestartCommandEnded, FaultDetected, GpuFailed, SelfTested>;

}  // namespace holdfast::coord
