#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/status.h"

// The kinds, targets, objectives and reports of drills.

namespace holdfast::faults {

enum class DrillKind {
  kKillRank,
  kHangRank,
  kSlowRank,
  kKillAgent,
  kKillNode,
  kKillCoordinator,
  kCorruptShard,
  kFillDisk,
  kPowerLoss,
  kPartition,
  kSlowLink,
  kLoseStore,
};

/// Properties of each kind.
struct DrillTraits {
  DrillKind kind;
  const char* name;
  bool of_rank;  // the target is a rank; otherwise a node, or neither
  bool of_node;
  bool restarts;        // the ranks are restarted: needs a job that the coordinator runs
  bool random;          // `random` may choose it
  int64_t duration_ms;  // the default duration of the fault
};
const std::vector<DrillTraits>& AllDrills();
const DrillTraits& TraitsOf(DrillKind kind);
/// InvalidArgument lists the kinds.
Result<DrillKind> ParseDrillKind(const std::string& name);

/// The target of a drill. Without rank and node, the seed chooses.
struct DrillTarget {
  std::optional<uint32_t> rank;
  std::string node;
  std::string peer;  // only the node's link to this node
};
/// Parses "rank 3", "n2" or "n1,n2", split into words.
Result<DrillTarget> ParseDrillTarget(const std::vector<std::string>& words);

/// Limits that a drill must meet.
struct DrillObjective {
  std::optional<int64_t> detect_ms;
  std::optional<int64_t> recover_ms;
  std::optional<int64_t> lost_steps;
  bool operator==(const DrillObjective&) const = default;
};
/// Parses "detect=10s,recover=60s,lost-steps=1", each at most once.
Result<DrillObjective> ParseDrillObjective(const std::string& text);

enum class BytesVerdict { kUnknown, kEqual, kDiffer };

/// The result of a drill. Times are milliseconds since the injection; absent: did not happen, or
/// unknown.
struct DrillReport {
  DrillKind kind = DrillKind::kKillRank;
  std::string target;  // "rank 3 on n1", "n2", "coordinator"
  uint64_t seed = 0;
  std::string what;
  int64_t wall_nanos = 0;  // of the injection
  std::optional<int64_t> detect_ms;
  std::optional<int64_t> decide_ms;
  std::optional<int64_t> stop_ms;
  std::optional<int64_t> restore_ms;
  std::optional<int64_t> recover_ms;  // a new version was committed
  std::optional<int64_t> lost_steps;
  std::optional<uint64_t> incident;  // number of the first incident that was opened
  std::string incident_kind;
  std::vector<uint32_t> blamed_ranks;
  std::vector<std::string> blamed_nodes;
  std::optional<VersionId> restored;  // absent: no restore was needed
  BytesVerdict bytes = BytesVerdict::kUnknown;
  std::vector<VersionId> survived;  // kLoseStore: the versions that were adopted
  std::vector<std::string> notes;
  std::vector<std::string> missed;  // limits that were not met; empty: passed
};

/// Fills the report's `missed`. A drill never passes if the job did not recover, or if it restored
/// different bytes.
void Judge(const DrillObjective& objective, DrillReport* report);

}  // namespace holdfast::faults
