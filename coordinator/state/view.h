#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/api/types.h"
#include "coordinator/state/records.h"

// What operators see of the state, as plain values.

namespace holdfast::coord {

struct NodeView {
  std::string name;
  bool alive = false;
  std::string data_address;
  uint64_t held_memory_bytes = 0;
  uint64_t held_disk_bytes = 0;
  NodeHealth health;
  int64_t seen_wall_nanos = 0;
};

struct JobView {
  std::string name;
  uint32_t uid = 0;
  Incarnation incarnation;
  uint32_t world = 0;
  uint32_t ranks_joined = 0;
  VersionId memory_committed;
  VersionId disk_committed;
  VersionId restorable;
  Tier restorable_tier = Tier::kMemory;  // the farthest tier that a rank needs
  std::string not_restorable_why;        // empty when the newest committed version is restorable
  int64_t committed_wall_nanos = 0;
  uint64_t committed_total = 0;
  uint64_t aborted_total = 0;
  uint64_t pending_versions = 0;
  Step newest_seen;
};

struct VersionView {
  VersionId version;
  Phase phase = Phase::kPending;
  uint32_t committed_tiers = 0;
  uint32_t available_tiers = 0;
  uint32_t world = 0;
  uint64_t bytes = 0;
  int64_t wall_nanos = 0;
  bool pinned = false;
  bool restorable = false;
  std::string why_not;
  bool abandoned = false;
};

struct SourceView {
  Rank rank;
  std::string node;
  std::string address;
  Tier tier = Tier::kMemory;
  uint64_t image_bytes = 0;
  uint64_t digest = 0;
};

struct RestoreView {
  VersionId version;
  uint32_t world = 0;
  std::vector<SourceView> sources;  // by rank
};

}  // namespace holdfast::coord
