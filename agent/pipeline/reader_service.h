#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "agent/arena/memory_file.h"
#include "agent/pipeline/executor.h"
#include "agent/pipeline/loop_queue.h"
#include "agent/pipeline/restore_tools.h"
#include "agent/pipeline/session_table.h"
#include "agent/pipeline/shard_preparer.h"
#include "agent/pipeline/shared_readers.h"

namespace holdfast::agent {

/// A version reader that a trainer has open, with the memory that the agent and the trainer share.
/// Each read in progress keeps the reader and the memory alive.
struct OpenReader {
  /// Reads bytes of a shard into a place of the shared memory. No other read may use the place at
  /// the same time. A place gets its memory at its first read, since most trainers use few places
  /// or none.
  Status Read(Rank rank, uint64_t offset, uint32_t place, uint64_t bytes);

  std::shared_ptr<VersionReader> reader;
  MemoryFile memory;
  std::array<uint64_t, kReadPlaces> allocated{};  // bytes of each place
  bool shared = false;  // other trainers of the job on this node may read the same chunks
};

/// The version readers of this node's trainers, through which ranks of a resharded job read parts
/// of all shards. Separate threads open and read them. The trainer gets the data through shared
/// memory; each reader has its own. Only the node's loop thread uses the object, except for Stop().
class ReaderService {
 public:
  /// The references outlive the object.
  ReaderService(const RestoreTools& tools, LoopQueue& loop, SessionTable& sessions,
                ShardPreparer& preparer);

  /// Opens a reader of the decided version for the trainer, and replies. If the rank's own shard is
  /// being brought into its memory, first waits for it, at most until the deadline: the trainer
  /// then reads that shard in place.
  void Open(Session& session, const WaitingReader& wanted);
  /// Handles a ReadRange.
  void Read(Session& session, const ReadRangeMessage& message);
  /// Handles a ReadIndex.
  void ReadIndex(Session& session, const CloseReaderMessage& message);
  /// Handles a CloseReader.
  void Close(Session& session, uint32_t number);
  /// Retries the session's waiting request.
  void Retry(Session& session);
  /// Closes the readers of a session that has ended.
  void CloseAll(Session& session);
  /// Opens the index of a version for a peer. Threads: any.
  Result<std::unique_ptr<PeerReader>> OpenIndexForPeer(const IndexedVersion& of);
  /// Ends the threads. Threads: any.
  void Stop() { threads_.Stop(); }

 private:
  struct Made {
    std::shared_ptr<OpenReader> open;
    uint64_t listing_bytes = 0;
  };
  /// What a thread needs of a session.
  struct VersionOfSession {
    std::string job;
    Rank rank;
    Incarnation incarnation;
  };

  /// Verifies a shard that is in this rank's memory, so that the trainer can read it in place. The
  /// coordinator may have directed the check before the rank joined, or not at all.
  void CheckOwnShard(Session& session, const RestoreDecision& decision);
  void StartOpen(Session& session, const WaitingReader& wanted, bool in_place);
  /// Threads: any. Blocks. Lists all shards, or the one that the rank begins with, or none.
  Result<Made> Make(const VersionOfSession& of, const WaitingReader& wanted, bool in_place);
  void OnMade(uint64_t session_id, const WaitingReader& wanted, bool in_place,
              const Result<Made>& made);

  const RestoreTools& tools_;
  LoopQueue& loop_;
  SessionTable& sessions_;
  ShardPreparer& preparer_;
  Executor threads_;
  SharedReaders shared_;
};

}  // namespace holdfast::agent
