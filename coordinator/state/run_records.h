#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/api/run_types.h"
#include "storage/base/ids.h"
#include "storage/base/life.h"

// What the coordinator persists of the jobs that it runs itself, and of what went wrong with any.

namespace holdfast::coord {

enum class RunPhase : uint8_t {
  kWaiting = 1,   // for nodes, or for the back-off to pass
  kStarting = 2,  // the nodes are told, not all workers run yet
  kRunning = 3,
  kStopping = 4,  // on request, once the disk has what memory has
  kFinished = 5,  // every worker ended with exit code 0
  kFailed = 6,    // the budget of restarts is used up
  kStopped = 7,
};

constexpr bool HasEnded(RunPhase phase) { return phase >= RunPhase::kFinished; }
std::string_view ToString(RunPhase phase);

/// The newest run of a job.
struct RunRecord {
  RunSpec spec;
  uint64_t serial = 0;  // counts the runs of the job, from 1
  RunPhase phase = RunPhase::kWaiting;
  std::string why;         // what it waits for, or why it ended
  uint32_t launches = 0;   // so far; the current one's run id has it
  uint32_t fruitless = 0;  // launches in a row that committed nothing
  int64_t started_wall_nanos = 0;
  std::vector<std::string> nodes;  // of the current launch, by node rank
  uint32_t budget_used = 0;        // restarts since the budget was last full
  uint32_t budget_versions = 0;    // newly committed since then
  uint64_t newest_step = 0;        // that any launch committed
  bool saved = false;              // a launch of this run has committed a version
  LifeId life = {};                // in which the current launch began
  bool operator==(const RunRecord&) const = default;

  uint32_t restarts() const { return launches == 0 ? 0 : launches - 1; }
  /// Never given twice, whatever becomes of the store.
  std::string run_id() const;
};

/// A node that gets no workers any more.
struct QuarantineRecord {
  std::string node;
  std::string why;
  int64_t wall_nanos = 0;
  bool operator==(const QuarantineRecord&) const = default;
};

/// A node with a GPU that needs a reset or a repair.
struct SuspectRecord {
  std::string node;
  std::string why;
  int64_t wall_nanos = 0;  // when its driver said so
  bool operator==(const SuspectRecord&) const = default;
};

enum class IncidentState : uint8_t {
  kOpen = 1,          // being dealt with
  kRecovered = 2,     // the job committed a new version
  kNoted = 3,         // nothing had to be done
  kGivenUp = 4,       // the run ended for it
  kAcknowledged = 5,  // a person has dealt with it
};
std::string_view ToString(IncidentState state);

/// What went wrong and what was done about it. Times are from `wall_nanos`; -1: not yet.
struct IncidentRecord {
  uint64_t id = 0;
  std::string job;
  int64_t wall_nanos = 0;  // the last sign of health, as far as it is known
  std::string kind;        // "worker died", "node lost", "hang", "damage", …
  std::string what;        // one sentence
  std::vector<std::string> evidence;
  std::vector<Rank> ranks;
  std::vector<std::string> nodes;
  std::string plan;
  int64_t detect_ms = -1;
  int64_t decide_ms = -1;
  int64_t stop_ms = -1;     // nothing of the old launch runs any more
  int64_t restore_ms = -1;  // the version is decided
  int64_t first_step_ms = -1;
  int64_t lost_steps = -1;
  VersionId restored;
  IncidentState state = IncidentState::kOpen;
  bool operator==(const IncidentRecord&) const = default;
};

}  // namespace holdfast::coord
