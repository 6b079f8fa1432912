#pragma once

#include "agent/pipeline/loop_queue.h"
#include "agent/pipeline/reader_service.h"
#include "agent/pipeline/restore_tools.h"
#include "agent/pipeline/session_table.h"
#include "agent/pipeline/shard_preparer.h"

namespace holdfast::agent {

/// The restore requests of this node's trainers: has the coordinator decide the version, and
/// replies once the rank's shard is in its memory. Passes the requests of resharded jobs to the
/// ReaderService. Only the node's loop thread uses it.
class RestoreService {
 public:
  /// The references outlive the object.
  RestoreService(const RestoreTools& tools, LoopQueue& loop, SessionTable& sessions,
                 ShardPreparer& preparer, ReaderService& readers)
      : tools_(tools), loop_(loop), sessions_(sessions), preparer_(preparer), readers_(readers) {}

  /// Handles a FindRestore or an OpenReader.
  void Find(Session& session, const FindRestoreMessage& message);
  /// Handles an EndRestore: the trainer no longer reads the slot.
  void End(Session& session, const EndSaveMessage& message);
  /// Retries the session's waiting requests.
  void Retry(Session& session);
  /// Unpins the slots of a session that has ended.
  void UnpinAll(Session& session);

 private:
  void Request(Session& session);
  void OnDecided(uint64_t session_id, const Result<RestoreDecision>& decision);
  void AwaitShard(Session& session, WaitingRestore restore, Clock::TimePoint request_deadline);
  /// Returns false while the shard is not in memory.
  bool TryAnswer(Session& session, const WaitingRestore& restore);

  const RestoreTools& tools_;
  LoopQueue& loop_;
  SessionTable& sessions_;
  ShardPreparer& preparer_;
  ReaderService& readers_;
};

}  // namespace holdfast::agent
