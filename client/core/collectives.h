#pragma once

#include <cstdint>

#include "agent/api/segment_layout.h"
#include "base/status.h"
#include "storage/collective/collective.h"

namespace holdfast::client {

struct BeginOptions {
  bool deferred = false;  // only enqueued; Started() follows
  bool numbered = false;  // the sequence is the caller's; otherwise the recorder counts
};

/// Records this process's collectives in the table that its agent reads. The functions store to
/// memory, without a lock, a system call or waiting; records that find no room are dropped and
/// counted. Without an agent the recorder keeps the operations in flight, so that the next agent
/// gets them. In a forked child it publishes nothing. Any thread may call, except where noted.
class CollectiveRecorder {
 public:
  CollectiveRecorder();
  ~CollectiveRecorder();
  CollectiveRecorder(const CollectiveRecorder&) = delete;
  CollectiveRecorder& operator=(const CollectiveRecorder&) = delete;

  /// Returns the recorder of this process, for callers without a client, such as the NCCL plugin.
  /// It is never destroyed. The first client of the process records through it too.
  static CollectiveRecorder& OfProcess();
  /// Claims the recorder for a client. Returns false when another client has it.
  bool Claim();
  /// Gives the recorder back after Detach(). The next client starts without steps and without
  /// communicator 0; records of other callers stay.
  void Release();

  /// Describes a communicator. A later description of the same id replaces the earlier one. Takes a
  /// lock: not for the hot path. InvalidArgument; ResourceExhausted: more communicators at once
  /// than the table holds.
  Status Describe(const Communicator& communicator);
  /// Removes a communicator and its transfers.
  void Forget(CommunicatorId communicator);

  /// Begins an operation. The caller fills in what the operation is; times, step and totals are set
  /// here. Returns a handle, or 0 when there was no room.
  uint64_t Begin(CollectiveRecord record, const BeginOptions& options);
  /// Marks when a deferred operation starts to run. The first of several calls counts.
  void Started(uint64_t handle);
  /// Sets, before End(), how long the device was busy with the operation.
  void DeviceTime(uint64_t handle, uint64_t ns);
  void Flag(uint64_t handle, uint16_t flags);
  void End(uint64_t handle);

  /// Adds completed transfers to the sums of their peer.
  void Add(const PeerTransfers& transfers);
  /// Sets what the current transfer with this peer waits for, from now on.
  void Edge(CommunicatorId communicator, uint32_t peer, Direction direction, EdgeState state);

  /// Sets the same for a transfer of the operation in flight with this handle, which has completed
  /// `completed` transfers with the peer in this direction.
  void Edge(uint64_t handle, uint32_t peer, Direction direction, EdgeState state,
            uint64_t completed);

  /// Records that the trainer begins `step`, which ends the step before. The same step again
  /// changes nothing, nor does a smaller one with `forward_only`.
  void Step(uint64_t step, bool forward_only);

  /// Returns how many records were invalid or found no room, with or without an agent.
  uint64_t dropped() const;

  /// Returns whether the agent requests per-peer times of the operations that begin now.
  bool Sampling() const;

  // Only the link's thread calls the functions below.

  /// Publishes to `control` from now on. `control` stays mapped until Detach().
  void Attach(agent::SegmentControl& control);
  /// Returns when no thread stores to the table any more.
  void Detach();
  /// Publishes the full state again: the agent clears it when it welcomes a trainer.
  void Republish();

 private:
  struct State;
  class TableAccess;

  void Advance(uint64_t step, uint64_t before, bool first);

  State* const state_;  // null: its allocation failed
};

/// Returns CLOCK_MONOTONIC in nanoseconds, the clock of all times in the table.
uint64_t MonotonicNs();

}  // namespace holdfast::client
