#pragma once

#include "agent/pipeline/job_service.h"
#include "agent/pipeline/node_shards.h"
#include "agent/pipeline/stopped_ranks.h"
#include "agent/pipeline/trainer_server.h"

namespace holdfast::agent {

/// The parts of a node that serve trainers and follow the states of jobs. Only the loop thread of
/// the node uses them, with the exceptions that their headers name. A part uses only parts that are
/// declared before it, and those of NodeShards.
struct NodeTrainers {
  /// The arguments outlive the object.
  NodeTrainers(const NodeSetup& node, NodeShards& kept) : setup(node), shards(kept) {
    shards.ranks.SetEvents(saves);
    shards.peer_source.indexes().SetWhole(
        [this](const IndexedVersion& of) { return readers.OpenIndexForPeer(of); });
  }

  const NodeSetup& setup;
  const NodeOptions& options = setup.options;
  NodeShards& shards;

  LoopQueue loop;
  SessionTable sessions;
  JobTable jobs;
  TrainerProcesses processes{options.trainers_file, options.processes};
  StoppedRanks stopped_ranks{shards.ranks, setup.link, shards.warnings};
  ParityService parity{{.node = options.node,
                        .build_timeout_ms = options.peer_build_timeout_ms,
                        .ranks = shards.ranks,
                        .memory = shards.memory,
                        .source = shards.peer_source,
                        .transport = setup.peers,
                        .link = setup.link,
                        .warnings = shards.warnings,
                        .clock = setup.clock},
                       shards.reach,
                       shards.background};
  SaveService saves{setup.link, shards.warnings, loop, sessions, setup.clock};
  ShardPreparer preparer{{.tools = shards.restore_tools,
                          .wait_ms = options.prepare_wait_ms,
                          .copies_at_once = options.copies_at_once,
                          .loop = loop,
                          .ranks = shards.ranks,
                          .memory = shards.memory,
                          .parity = parity,
                          .jobs = jobs,
                          .sessions = sessions}};
  ReaderService readers{shards.restore_tools, loop, sessions, preparer};
  RestoreService restores{shards.restore_tools, loop, sessions, preparer, readers};
  JoinService joins{{.node = options.node,
                     .arena_bytes = setup.arena.usage().budget_bytes,
                     .link = setup.link,
                     .clock = setup.clock,
                     .loop = loop,
                     .sessions = sessions,
                     .ranks = shards.ranks,
                     .memory = shards.memory,
                     .watched = shards.watched,
                     .workers = shards.workers,
                     .processes = processes}};
  TrainerServer server{{.hello_timeout_ms = options.hello_timeout_ms,
                        .limits = options.sessions,
                        .joins = joins,
                        .saves = saves,
                        .restores = restores,
                        .readers = readers,
                        .preparer = preparer,
                        .link = setup.link,
                        .clock = setup.clock,
                        .loop = loop,
                        .sessions = sessions,
                        .ranks = shards.ranks,
                        .jobs = jobs,
                        .watched = shards.watched,
                        .processes = processes,
                        .table = options.processes}};
  JobRelease release{shards.ranks, shards.memory, parity, sessions, shards.workers, setup.clock};
  JobService job_service{{.jobs = jobs,
                          .ranks = shards.ranks,
                          .release = release,
                          .peer_source = shards.peer_source,
                          .parity = parity,
                          .disks = shards.disks,
                          .groups = shards.groups,
                          .commits = shards.commits,
                          .indexes = shards.indexes,
                          .shared = shards.shared_tiers,
                          .preparer = preparer,
                          .saves = saves,
                          .joins = joins,
                          .trainers = server,
                          .processes = processes,
                          .warnings = shards.warnings,
                          .link = setup.link,
                          .clock = setup.clock}};
};

}  // namespace holdfast::agent
