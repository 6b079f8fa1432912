#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "coordinator/api/run_types.h"
#include "coordinator/state/events.h"

// What happens to runs, beside the events that nodes cause.

namespace holdfast::coord {

struct RunWanted {
  RequestId request = 0;
  RunSpec spec;
};

struct StopWanted {
  RequestId request = 0;
  std::string job;
  int64_t deadline_ms = 0;  // wait so long for the disk; 0: not at all
};

struct QuarantineWanted {
  RequestId request = 0;
  std::string node;
  bool set = true;
  std::string why;
};

/// A person has dealt with an incident; nothing more is done about it.
struct AcknowledgeWanted {
  RequestId request = 0;
  uint64_t id = 0;
  std::string why;
};

/// How a run of restart.command went.
struct RestartCommandEnded {
  uint64_t incident = 0;
  bool ok = false;
  std::string how;  // "ended with exit code 1", …
};

/// What is to be done about a fault.
enum class FaultAction : uint8_t {
  kNote,              // a person should know
  kRestart,           // stop all and start again
  kRestartElsewhere,  // the same, without the nodes that are blamed if there are others
};

/// Somebody found out that a job does not do well.
struct FaultFound {
  std::string job;
  Incarnation incarnation;
  std::string kind;  // "non-communication hang", …
  std::string what;  // one sentence
  std::vector<std::string> evidence;
  std::vector<Rank> ranks;
  std::vector<std::string> nodes;
  FaultAction action = FaultAction::kNote;
  bool dead = false;       // processes have ended
  bool hang = false;       // nothing moves; told again and again while it lasts
  bool stuck = false;      // of a hang: every rank waits in communication, nobody is elsewhere
  bool suspected = false;  // of a hang: it may yet be a pause; `action` is for when it is not
  int64_t lasting_ms = 0;  // of a hang: how long
  int64_t longest_pause_ms = 0;  // the longest after which the job went on by itself
  uint64_t step = 0;             // the newest that any rank has come to
  int64_t since_ms = 0;          // how long ago the last sign of health was
};

inline constexpr uint32_t kGpuUnknown = ~0U;

/// The driver of a node reports an error of a GPU.
struct GpuFailed {
  std::string node;
  uint64_t agent_start = 0;
  uint64_t number = 0;            // the agent's: an error may be told twice
  uint32_t device = kGpuUnknown;  // index on the node
  std::string bus_id;             // empty: not known
  uint32_t xid = 0;
  int64_t ago_ms = 0;
  std::vector<std::string> jobs;  // that have ranks there
};

using RunEvent = std::variant<RunWanted, StopWanted, QuarantineWanted, AcknowledgeWanted,
                              RestartCommandEnded, FaultFound, GpuFailed>;

}  // namespace holdfast::coord
