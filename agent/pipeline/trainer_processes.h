#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "agent/pipeline/process_table.h"
#include "agent/pipeline/rank_registry.h"
#include "base/fd.h"
#include "base/ids.h"

namespace holdfast::agent {

/// The processes that last had the memory of this node's ranks mapped. The record survives a
/// restart of the agent (see trainer_record.h). Only the node's loop thread uses it.
class TrainerProcesses {
 public:
  /// `file` empty: the record is not kept. `table` outlives the object.
  TrainerProcesses(std::string file, ProcessTable& table) : file_(std::move(file)), table_(table) {}

  /// Reads the record. Leaves out processes that have ended since it was written.
  void Load();
  /// Records that a process has joined as a rank.
  void OnJoined(const RankKey& rank, pid_t pid, UniqueFd pid_fd, Incarnation incarnation);
  /// Records that the rank's trainer has sent a Goodbye. If the same process connects again, it
  /// must join as the same start of the job.
  void OnGoodbye(const RankKey& rank, Incarnation incarnation);

  /// Returns the running process of a rank if it is not `pid`.
  std::optional<pid_t> OtherProcessOf(const RankKey& rank, pid_t pid) const;
  /// Returns whether there is any record of the rank.
  bool HasRecordOf(const RankKey& rank) const {
    return processes_.contains(rank) || departed_.contains(rank);
  }
  /// Returns whether the rank's process runs and has sent no Goodbye.
  bool IsRunning(const RankKey& rank) const { return processes_.contains(rank); }
  /// Returns the incarnation that this process joined before as the rank.
  std::optional<Incarnation> JoinedBefore(const RankKey& rank, pid_t pid) const;
  /// The ranks whose latest trainer sent a Goodbye, with its incarnation.
  const std::map<RankKey, Incarnation>& goodbyes() const { return goodbyes_; }

  /// Drops the processes that have ended.
  void Sweep();
  /// Drops all incarnations: in another life of the coordinator's store they mean nothing.
  void ForgetIncarnations();
  /// Drops the goodbyes of a job without memory on this node.
  void ForgetGoodbyes(const std::string& job);

 private:
  struct Process {
    pid_t pid = 0;
    uint64_t start_ticks = 0;                // distinguishes processes of the same PID
    std::optional<Incarnation> incarnation;  // the one it joined, if known
    UniqueFd pid_fd;                         // not set after a Goodbye
  };

  void Store() const;

  const std::string file_;
  ProcessTable& table_;
  std::map<RankKey, Process> processes_;
  std::map<RankKey, Process> departed_;  // sent a Goodbye
  std::map<RankKey, Incarnation> goodbyes_;
};

}  // namespace holdfast::agent
