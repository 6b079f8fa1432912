#pragma once

#include "agent/pipeline/adoption.h"
#include "agent/pipeline/committed_indexes.h"
#include "agent/pipeline/disk_retention.h"
#include "agent/pipeline/group_reporter.h"
#include "agent/pipeline/known_commits.h"
#include "agent/pipeline/node_setup.h"
#include "agent/pipeline/peer_reach.h"
#include "agent/pipeline/peer_source.h"
#include "agent/pipeline/rank_memory.h"
#include "agent/pipeline/restore_tools.h"
#include "agent/pipeline/shared_tiers.h"
#include "agent/pipeline/watched_ranks.h"

namespace holdfast::agent {

/// The parts of a node that keep its ranks and shards. Any thread may use them, with the exceptions
/// that their headers name. A part uses only parts that are declared before it.
struct NodeShards {
  /// `node` outlives the object.
  explicit NodeShards(const NodeSetup& node) : setup(node) {
    shared_tiers.SetLife(options.seen_life.life);
  }

  static constexpr uint32_t kWorkers = 4;

  const NodeSetup& setup;
  const NodeOptions& options = setup.options;

  ChecksumPool checksums{options.checksum_threads};
  RankRegistry ranks{{.disk_every_steps = options.disk_every_steps,
                      .peer_every_steps = options.peer_every_steps,
                      .seen_life = options.seen_life},
                     setup.arena,
                     setup.volume,
                     checksums,
                     setup.clock};
  RankMemory memory{ranks, setup.arena, setup.link, options.before_reserve};
  Warnings warnings{setup.link};
  WatchedRanks watched;
  PeerReach reach{setup.peers, options.node, setup.clock};

  DamageTracker damage{ranks, setup.volume, setup.link, options.shared_tiers};
  LocalShards local{ranks, setup.volume, damage, options.shared_tiers};
  NodePeerSource peer_source{options.node, ranks, local, damage, setup.peers, setup.clock};

  Executor workers{kWorkers, setup.clock};  // reservations, restores to memory, checks
  Executor background{1, setup.clock};      // removals from disk, ends of parity keepers

  const RestoreTools restore_tools{.reach = {.node = options.node,
                                             .local = peer_source,
                                             .transport = setup.peers,
                                             .clock = setup.clock},
                                   .volume = setup.volume,
                                   .local = local,
                                   .link = setup.link,
                                   .clock = setup.clock,
                                   .damage = damage,
                                   .workers = workers,
                                   .stores = setup.stores()};
  Adoption adoption{ranks, setup.arena, setup.volume, setup.link, damage, workers, setup.clock};
  DiskRetention disks{setup.volume, setup.link, damage, warnings, background};
  GroupReporter groups{ranks, setup.volume, local, setup.link, background, setup.clock};
  KnownCommits commits{ranks, setup.volume, setup.link, background, setup.clock};
  CommittedIndexes indexes{setup.volume, peer_source.indexes(), background, setup.clock};
  SharedTiers shared_tiers{options.shared_tiers, setup.link, warnings, setup.clock};
};

}  // namespace holdfast::agent
