#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "storage/base/ids.h"
#include "storage/base/status.h"

// What a drill is and what came of it, as values.

namespace holdfast::cli {

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
};

/// What is fixed for each kind.
struct DrillTraits {
  DrillKind kind;
  const char* name;
  bool of_rank;  // strikes a rank: else a node, or neither
  bool of_node;
  bool restarts;        // the ranks start again: needs a job that the coordinator runs
  bool random;          // `random` may choose it
  int64_t duration_ms;  // of the fault, unless asked for otherwise
};
const std::vector<DrillTraits>& AllDrills();
const DrillTraits& TraitsOf(DrillKind kind);
/// InvalidArgument names the kinds there are.
Result<DrillKind> ParseDrillKind(const std::string& name);

/// What to strike; neither is set: the seed chooses.
struct DrillTarget {
  std::optional<uint32_t> rank;
  std::string node;
  std::string peer;  // of its links the one to this node alone
};
/// "rank 3", "n2" or "n1,n2", in words.
Result<DrillTarget> ParseDrillTarget(const std::vector<std::string>& words);

/// What a drill has to keep to.
struct DrillObjective {
  std::optional<int64_t> detect_ms;
  std::optional<int64_t> recover_ms;
  std::optional<int64_t> lost_steps;
  bool operator==(const DrillObjective&) const = default;
};
/// "detect=10s,recover=60s,lost-steps=1", each at most once.
Result<DrillObjective> ParseDrillObjective(const std::string& text);

enum class BytesVerdict { kUnknown, kEqual, kDiffer };

/// Times are milliseconds since the injection; -1: not, or not known.
struct DrillReport {
  DrillKind kind = DrillKind::kKillRank;
  std::string target;  // "rank 3 on n1", "n2", "coordinator"
  uint64_t seed = 0;
  std::string what;
  int64_t wall_nanos = 0;  // of the injection
  int64_t detect_ms = -1;
  int64_t decide_ms = -1;
  int64_t stop_ms = -1;
  int64_t restore_ms = -1;
  int64_t recover_ms = -1;  // a new version was committed
  int64_t lost_steps = -1;
  uint64_t incident = 0;  // its number; 0: none was opened
  std::string incident_kind;
  std::vector<uint32_t> blamed_ranks;
  std::vector<std::string> blamed_nodes;
  VersionId restored;  // 0-0: nothing had to be
  BytesVerdict bytes = BytesVerdict::kUnknown;
  std::vector<std::string> notes;
  std::vector<std::string> missed;  // what it did not keep to; empty: passed
};

/// Writes into `missed` what the report does not keep to. Without a recovery, or with other bytes,
/// no drill is passed.
void Judge(const DrillObjective& objective, DrillReport* report);

}  // namespace holdfast::cli
