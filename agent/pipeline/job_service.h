#pragma once

#include <map>
#include <string>

#include "agent/pipeline/committed_indexes.h"
#include "agent/pipeline/disk_retention.h"
#include "agent/pipeline/group_reporter.h"
#include "agent/pipeline/job_release.h"
#include "agent/pipeline/job_table.h"
#include "agent/pipeline/known_commits.h"
#include "agent/pipeline/parity_service.h"
#include "agent/pipeline/peer_source.h"
#include "agent/pipeline/rank_registry.h"
#include "agent/pipeline/save_service.h"
#include "agent/pipeline/shard_preparer.h"
#include "agent/pipeline/shared_tiers.h"
#include "agent/pipeline/trainer_server.h"

namespace holdfast::agent {

/// The parts of the node that follow the states of jobs. All outlive the JobService.
struct JobParts {
  JobTable& jobs;
  RankRegistry& ranks;
  JobRelease& release;
  NodePeerSource& peer_source;
  ParityService& parity;
  DiskRetention& disks;
  GroupReporter& groups;
  KnownCommits& commits;
  CommittedIndexes& indexes;
  SharedTiers& shared;
  ShardPreparer& preparer;
  SaveService& saves;
  JoinService& joins;
  TrainerServer& trainers;
  TrainerProcesses& processes;
  Warnings& warnings;
  CoordinatorLink& link;
  Clock& clock;
};

/// Applies the coordinator's directives about jobs and versions to all parts of the node. Only the
/// node's loop thread uses it.
class JobService {
 public:
  explicit JobService(const JobParts& parts) : parts_(parts) {}

  /// Applies a job state. With `state.forget`, instead removes all shards of incarnations up to
  /// that of `state`.
  void Apply(JobState state);
  /// Applies the life of the coordinator's store. In another life, the numbers of versions and
  /// incarnations have another meaning: trainers join again, and the state of jobs is dropped.
  /// Replicas are kept; they belong to the earlier life.
  void ApplyLife(const SeenLife& seen);
  /// Removes the replicas of a version at a tier.
  void Remove(const RemoveVersion& remove);
  /// Advances releases. Call it about ten times a second.
  void Tick();

 private:
  /// A job without a parity group, and the time at which its joins are repeated.
  struct Unprotected {
    Incarnation incarnation;
    Clock::TimePoint next;
    Clock::Duration pause{};
  };

  void ApplyToRanks(const JobState& job);
  void RepeatJoins(const JobState& job);
  void Forget(const JobState& state);
  /// Drops the state of a job that has no memory left.
  void Drop(const std::string& job);

  const JobParts parts_;
  std::map<std::string, Unprotected> unprotected_;
};

}  // namespace holdfast::agent
