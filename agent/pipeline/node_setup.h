#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "agent/arena/arena.h"
#include "agent/peers/transport.h"
#include "agent/pipeline/coordinator_link.h"
#include "agent/pipeline/process_table.h"
#include "agent/pipeline/scrubber.h"
#include "agent/pipeline/trainer_server.h"
#include "base/clock.h"
#include "base/tiers.h"
#include "storage/volume/volume.h"

namespace holdfast::agent {

struct NodeOptions {
  std::string node;
  uint64_t disk_every_steps = 0;  // 0: as often as the disks keep up
  uint64_t peer_every_steps = 0;  // 0: as often as the peers keep up
  int64_t peer_build_timeout_ms = 30'000;
  std::string trainers_file;  // see trainer_record.h; empty: none
  int64_t hello_timeout_ms = 5'000;
  SessionLimits sessions = {};
  ScrubOptions scrub;
  PerTier<TierStore*> shared_tiers = {};  // nullptr: the node does not reach the tier
  uint32_t copies_at_once = 1;            // shards that are copied to shared tiers at the same time
  uint32_t checksum_threads = 0;          // that help the sealers; see checksum_pool.h
  SeenLife seen_life = {};                // the life that the agent followed before its start
  int64_t prepare_wait_ms = 30'000;       // how long a PrepareShard waits for its rank to connect
  ProcessTable& processes = ProcessTable::Kernel();
  /// For tests: called before memory is reserved.
  std::function<void(const SegmentOwner&)> before_reserve = {};
};

/// What a node is made with. The references outlive the node.
struct NodeSetup {
  NodeOptions options;
  Arena& arena;
  Volume& volume;
  CoordinatorLink& link;
  PeerTransport& peers;
  Clock& clock;

  /// Returns the disks of the node, and the shared tiers that the node reaches.
  PerTier<TierStore*> stores() const {
    PerTier<TierStore*> all = options.shared_tiers;
    all[Tier::kDisk] = &volume;
    return all;
  }
};

}  // namespace holdfast::agent
