#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/tiers.h"
#include "coordinator/api/coordinator.pb.h"

namespace holdfast::view {

enum class HealthLevel { kOk, kWarn, kError };

/// A problem, or (kOk) information. `code` is stable: alerts match on it.
struct Finding {
  std::string code;
  HealthLevel level = HealthLevel::kWarn;
  std::string subject;  // "node n2", "job lm"
  std::string message;
  std::string next{};  // the command that an operator runs next
};

/// The data of `status`: the coordinator's answer, each job's versions, and the runs.
struct ClusterSnapshot {
  coordinator::GetStatusReply status;
  std::map<std::string, coordinator::ListVersionsReply> versions;
  coordinator::GetRunsReply runs;  // with the nodes in quarantine
  int64_t now_wall_nanos = 0;
};

/// A job's phase, the times of its newest committed version at each tier, and its pending bytes.
struct JobHealth {
  const coordinator::JobStatus* job = nullptr;
  // Of the current incarnation: "waiting", "joining", "joined"; then "ended" or "finished".
  std::string phase;
  PerTier<int64_t> committed_wall_nanos{};  // 0: unknown
  uint64_t pending_bytes = 0;
};
JobHealth HealthOf(const ClusterSnapshot& snapshot, const coordinator::JobStatus& job);

/// Returns all findings, the most severe first. Codes:
///   ATTACHING        the coordinator has just started, and nodes have not attached yet
///   NODE_DOWN        a node does not answer (an error when none does)
///   DISK_FULL        a node's data directories have no room left
///   DISK_FAILED      a node cannot write to its data directories
///   DISK_LOW         less than a tenth of a node's data directories is free
///   QUARANTINED_FILES  a node has damaged or unknown files in quarantine
///   NO_NODES         no agent is attached or ever was (an error)
///   NODE_REFUSED     the coordinator refuses an agent (an error)
///   OTHER_LIFE       a node has replicas of another life of the coordinator's store (an error)
///   NOTHING_COMMITS  ranks save, and every version is aborted (an error)
///   IO_URING_REFUSED  the kernel refuses io_uring to an agent, so the agent writes more slowly
///   KEEPER_LOST      no keeper holds a node's memory
///   KEEPER_SHARED    stopping a node's agent would end its keeper
///   CLOCK_SKEWED     a node's clock differs from the coordinator's by more than a second
///   INVARIANT_VIOLATED  the coordinator, or a rank on a node, has stopped (an error)
///   NODE_WARNING     another condition that an agent reports
///   RANKS_MISSING    fewer ranks of a job have joined than its world has
///   NO_CHECKPOINT    ranks have joined and nothing of the job is committed yet
///   NOT_RESTORABLE   a job has committed versions and none can be restored now
///   RESTORE_BEHIND   the newest restorable version is older than the newest committed one
///   NOT_DURABLE      the job makes no newer version, and its newest one is not at every tier
///   CHECKPOINT_STALE a running job committed nothing for `stale_after_nanos`
///   PEER_STALE       the same for tier peer, of a job with parity groups
///   DISK_STALE       the same for tier disk
///   UNDER_PROTECTED  a version on disk lacks shards that its parity groups should keep there
///   DISPUTED         tensor replicas differ in a version (an error if it is the newest one)
///   NODE_QUARANTINED a node gets no workers
///   NODE_DRAINED     a node is drained ahead of maintenance
///   RUN_WAITING      a run waits for nodes
///   RUN_FAILED       a run has failed
///   NOT_PROTECTED    (kOk) no parity is kept for a job, with the reason
std::vector<Finding> Examine(const ClusterSnapshot& snapshot, int64_t stale_after_nanos);
/// Returns the findings of the nodes only.
std::vector<Finding> ExamineNodes(const coordinator::GetStatusReply& status,
                                  int64_t now_wall_nanos);

/// Returns the command that shows or cures the cause of a finding with this code. `subject` is that
/// of the finding.
std::string NextCommand(const std::string& code, const std::string& subject);

HealthLevel WorstLevel(const std::vector<Finding>& findings);
/// "HOLDFAST_OK", "HOLDFAST_WARN", "HOLDFAST_ERR"
std::string NameOf(HealthLevel level);

}  // namespace holdfast::view
