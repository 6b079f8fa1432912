#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/life.h"
#include "coordinator/contract/limits.h"
#include "coordinator/contract/runs.h"

// The coordinator's persistent records of runs, incidents, quarantined nodes and suspect nodes.

namespace holdfast::coord {

enum class RunPhase : uint8_t {
  kWaiting = 1,   // for nodes, or for the end of the back-off
  kStarting = 2,  // the directives are sent, and not all workers run yet
  kRunning = 3,
  kStopping = 4,  // on request: stops when the newest version in memory is on disk
  kFinished = 5,  // every worker ended with exit code 0
  kFailed = 6,    // the restart budget is used up, or the job itself is at fault
  kStopped = 7,
};

constexpr bool HasEnded(RunPhase phase) { return phase >= RunPhase::kFinished; }
std::string_view ToString(RunPhase phase);

/// The newest run of a job.
struct RunRecord {
  RunSpec spec;
  uint64_t serial = 0;  // counts the runs of the job, from 1
  RunPhase phase = RunPhase::kWaiting;
  std::string why;         // what the run waits for, or why it ended
  uint32_t launches = 0;   // so far; part of the current launch's run ID
  uint32_t fruitless = 0;  // consecutive launches that committed no version
  int64_t started_wall_nanos = 0;
  std::vector<std::string> nodes;  // of the current launch, by node rank
  uint32_t budget_used = 0;        // restarts since the budget was last full
  uint32_t budget_versions = 0;    // versions committed since then
  uint64_t newest_step = 0;        // newest step that any launch committed
  bool saved = false;              // a launch of this run has committed a version
  LifeId life = {};                // life of the store in which the current launch began
  bool operator==(const RunRecord&) const = default;

  uint32_t restarts() const { return launches == 0 ? 0 : launches - 1; }
  /// The run ID of the current launch. Unique even if the store is lost or replaced by an older
  /// copy.
  std::string run_id() const;
};

/// A node on which no workers are placed.
struct QuarantineRecord {
  std::string node;
  std::string why;
  int64_t wall_nanos = 0;
  bool operator==(const QuarantineRecord&) const = default;
};

/// A node that is drained ahead of maintenance.
struct DrainRecord {
  std::string node;
  std::string why;
  int64_t wall_nanos = 0;  // when the drain began
  bool move_runs = false;  // runs restart without the node
  bool removed = false;    // it is not shown until its agent attaches again
  bool operator==(const DrainRecord&) const = default;
};

/// A node with a GPU that needs a reset or a repair.
struct SuspectRecord {
  std::string node;
  std::string why;
  int64_t wall_nanos = 0;  // when the GPU driver reported the error
  bool operator==(const SuspectRecord&) const = default;
};

enum class IncidentState : uint8_t {
  kOpen = 1,          // recovery is in progress
  kRecovered = 2,     // the job committed a new version
  kNoted = 3,         // no action was needed
  kGivenUp = 4,       // the run ended because of the incident
  kAcknowledged = 5,  // an operator acknowledged it
};
std::string_view ToString(IncidentState state);

/// A fault and the response to it. The `_ms` times count from `wall_nanos`, and are absent until
/// they are reached.
struct IncidentRecord {
  uint64_t id = 0;
  std::string job;
  int64_t wall_nanos = 0;  // the last known sign of health
  std::string kind;        // "worker died", "node lost", "hang", "damage", …
  std::string what;        // one sentence
  std::vector<std::string> evidence;
  std::vector<Rank> ranks;
  std::vector<std::string> nodes;
  std::string plan;
  std::optional<int64_t> detect_ms;
  std::optional<int64_t> decide_ms;
  std::optional<int64_t> stop_ms;     // all processes of the old launch have ended
  std::optional<int64_t> place_ms;    // all workers of the new launch run on their nodes
  std::optional<int64_t> restore_ms;  // the version to restore is decided
  std::optional<int64_t> first_step_ms;
  std::optional<int64_t> lost_steps;
  std::optional<VersionId> restored;
  IncidentState state = IncidentState::kOpen;
  bool operator==(const IncidentRecord&) const = default;
};

}  // namespace holdfast::coord
