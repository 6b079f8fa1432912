#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "agent/pipeline/executor.h"
#include "agent/pipeline/job_table.h"
#include "agent/pipeline/loop_queue.h"
#include "agent/pipeline/rank_memory.h"
#include "agent/pipeline/session_table.h"
#include "agent/pipeline/trainer_processes.h"
#include "agent/pipeline/watched_ranks.h"

namespace holdfast::agent {

/// The calls of JoinService to the server of the sessions. They run on the loop thread.
class SessionControl {
 public:
  virtual ~SessionControl() = default;
  /// Handles the packets that the trainer has sent.
  virtual void ReadPackets(Session& session) = 0;
  /// Ends a session at once.
  virtual void EndSession(Session& session, std::string_view why) = 0;
  /// Called when the session becomes ready to be served.
  virtual void OnReady(Session& session) = 0;
};

/// What JoinService uses. All references outlive it.
struct JoinParts {
  std::string node;          // this node's name
  uint64_t arena_bytes = 0;  // the complete memory of the arena
  CoordinatorLink& link;
  Clock& clock;
  LoopQueue& loop;
  SessionTable& sessions;
  RankRegistry& ranks;
  RankMemory& memory;
  WatchedRanks& watched;
  Executor& workers;
  TrainerProcesses& processes;
};

/// Joins trainers: checks a Hello, has the coordinator assign the incarnation, reserves the rank's
/// memory and sends the Welcome. Only the node's loop thread uses it; memory is reserved on
/// workers.
class JoinService {
 public:
  explicit JoinService(JoinParts parts) : parts_(std::move(parts)) {}

  /// Sets the server of the sessions, which outlives the object. Call it once, before Hello().
  void SetControl(SessionControl& control) { control_ = &control; }

  /// Handles a Hello.
  void Hello(Session& session, const HelloMessage& hello);
  /// Notifies a joining trainer, about once a second, that its memory is being reserved.
  void SendProgress(Session& session);
  /// Refuses a trainer: sends the reason and closes the session.
  void Refuse(Session& session, const Status& status);
  /// Repeats the joins of a job's ready trainers of an incarnation.
  void RepeatJoins(const std::string& job, Incarnation incarnation);
  /// Drops the recorded joins of a job without memory on this node, or of all jobs.
  void ForgetJob(const std::string& job);
  void ForgetAll() { joined_.clear(); }

 private:
  /// Checks the Hello and copies its identity into the session.
  Status Check(Session& session, const HelloMessage& hello) const;
  Status CheckFits(const HelloMessage& hello, const std::string& job) const;
  /// Claims the rank for the session's process. Only one process may have a rank's memory mapped:
  /// two would write into the same slots.
  Status Claim(Session& session);
  JoinRequest RequestOf(const Session& session) const;
  void OnJoined(uint64_t session_id, const Result<Incarnation>& incarnation);
  void OnReserved(uint64_t session_id, const Result<RankLease>& rank);
  void Welcome(Session& session);

  const JoinParts parts_;
  SessionControl* control_ = nullptr;
  /// The last join of a run that the coordinator accepted, and the user of its process.
  struct Joined {
    Incarnation incarnation;
    uid_t uid = 0;
  };
  std::map<std::pair<std::string, std::string>, Joined> joined_;  // by job and run ID
};

}  // namespace holdfast::agent
