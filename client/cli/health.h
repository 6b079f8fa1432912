#pragma once

#include <map>
#include <string>
#include <vector>

#include "client/cli/table.h"
#include "coordinator/api/coordinator.pb.h"

namespace holdfast::cli {

enum class HealthLevel { kOk, kWarn, kError };

/// One thing that is not well, or (kOk) worth knowing. `code` is stable: alerts match on it.
struct Finding {
  std::string code;
  HealthLevel level = HealthLevel::kWarn;
  std::string subject;  // "node n2", "job lm"
  std::string message;
};

/// What `status` knows: the coordinator's answer, each job's versions, and the runs.
struct ClusterView {
  coordinator::GetStatusReply status;
  std::map<std::string, coordinator::ListVersionsReply> versions;
  coordinator::GetRunsReply runs;  // with the nodes in quarantine
  int64_t now_wall_nanos = 0;
};

/// The age of a job's newest version committed at a tier, and what is on its way.
struct JobView {
  const coordinator::JobStatus* job = nullptr;
  // Of the current incarnation: "waiting", "joining", "joined"; then "ended" or "finished".
  std::string phase;
  int64_t memory_committed_wall_nanos = 0;  // 0: not known
  int64_t peer_committed_wall_nanos = 0;
  int64_t disk_committed_wall_nanos = 0;
  uint64_t pending_bytes = 0;
};
JobView ViewOf(const ClusterView& view, const coordinator::JobStatus& job);

/// Everything that is not well, gravest first. Codes:
///   NODE_DOWN        a node does not answer (an error when none does)
///   DISK_FULL        a node's data directories have no room left
///   DISK_FAILED      a node cannot write to its data directories
///   DISK_LOW         less than a tenth is left
///   QUARANTINED_FILES  a node set damaged or unknown files aside, and they are still there
///   NO_NODES         no agent is attached or was (an error)
///   NODE_REFUSED     an agent is turned away (an error)
///   OTHER_LIFE       a node keeps copies of another life of the coordinator's store (an error)
///   NOTHING_COMMITS  ranks save, and each version is given up (an error)
///   NODE_WARNING     another condition that an agent reports
///   RANKS_MISSING    fewer ranks of a job have joined than its world has
///   NO_CHECKPOINT    ranks have joined and nothing of the job is committed yet
///   NOT_RESTORABLE   a job has committed versions and none can be brought back now
///   RESTORE_BEHIND   what can be brought back is older than what was committed
///   NOT_DURABLE      nothing newer comes, and the newest version is not at every tier
///   CHECKPOINT_STALE a job that runs committed nothing for `stale_after_nanos`
///   PEER_STALE       the same for tier peer, of a job with parity groups
///   DISK_STALE       the same for tier disk
///   UNDER_PROTECTED  a version on disk lacks shards that its parity groups are to keep there
///   NODE_QUARANTINED a node gets no workers
///   RUN_WAITING      a run waits for nodes
///   RUN_FAILED       a run was given up
///   NOT_PROTECTED    (kOk) no parity is kept for a job, and why
std::vector<Finding> Examine(const ClusterView& view, int64_t stale_after_nanos);
/// Those of the nodes alone.
std::vector<Finding> ExamineNodes(const coordinator::GetStatusReply& status,
                                  int64_t now_wall_nanos);

HealthLevel Gravest(const std::vector<Finding>& findings);
/// "HOLDFAST_OK", "HOLDFAST_WARN", "HOLDFAST_ERR"
std::string NameOf(HealthLevel level);
Tone ToneOf(HealthLevel level);

}  // namespace holdfast::cli
