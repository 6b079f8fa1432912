#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "storage/base/ids.h"

// What travels between agents and the coordinator, as plain values with strong ids. The wire form
// is coordinator.proto; convert.h goes between the two and checks everything that arrives.

namespace holdfast::coord {

/// A node has the bytes of one shard, complete and checksummed, at a tier.
struct Holding {
  std::string job;
  VersionId version;
  Rank rank;
  uint32_t world = 0;
  Tier tier = Tier::kMemory;
  uint64_t digest = 0;
  uint64_t image_bytes = 0;
  bool operator==(const Holding&) const = default;
};

/// A version will not have this rank's shard at this tier.
struct Missing {
  std::string job;
  VersionId version;
  Rank rank;
  Tier tier = Tier::kMemory;
  std::string why;
};

/// The node no longer has this shard at this tier.
struct Gone {
  std::string job;
  VersionId version;
  Rank rank;
  Tier tier = Tier::kMemory;
};

/// The end of a PrepareOrder. DataLoss: the source is damaged and no longer counts.
struct Prepared {
  uint64_t request = 0;
  Status outcome;
};

/// What operators see of a node beside its holdings.
struct NodeHealth {
  std::vector<std::string> warnings;
  uint32_t disk_free_percent = 0;
};

/// The coordinator's word on a job; sent whole. A step and incarnation of 0 mean "none".
struct JobWord {
  std::string job;
  Incarnation incarnation;
  VersionId memory_committed;
  VersionId disk_committed;
  std::vector<VersionId> aborted;
  Step disk_target_step;
  VersionId restore;
  bool operator==(const JobWord&) const = default;
};

/// Bring this shard into memory, verified, and answer with Prepared.
struct PrepareOrder {
  uint64_t request = 0;
  std::string job;
  VersionId version;
  Rank rank;
  uint32_t world = 0;
  Tier tier = Tier::kMemory;
  std::string source_node;
  std::string source_address;
  uint64_t digest = 0;
  bool operator==(const PrepareOrder&) const = default;
};

/// Delete what the node has of a version at a tier.
struct RemoveOrder {
  std::string job;
  VersionId version;
  Tier tier = Tier::kDisk;
  bool operator==(const RemoveOrder&) const = default;
};

}  // namespace holdfast::coord
