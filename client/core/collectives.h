#pragma once

#include <cstdint>
#include <span>

#include "agent/api/segment_layout.h"
#include "storage/base/status.h"

namespace holdfast::client {

/// A communicator as its creator describes it.
struct CommunicatorDescription {
  uint64_t id = 0;
  uint32_t size = 0;
  uint32_t index = 0;
  agent::CommunicatorRole role = agent::CommunicatorRole::kUnknown;
  std::span<const uint32_t> members;  // ranks of the job by index; empty: not known here
};

struct BeginOptions {
  bool deferred = false;  // only enqueued; Started() follows
  bool numbered = false;  // the sequence is the caller's; otherwise the recorder counts
};

/// A completed transfer to or from a peer, and where its time was spent.
struct Transfer {
  uint64_t communicator = 0;
  uint32_t peer = 0;  // index in the communicator
  agent::Direction direction = agent::Direction::kSend;
  uint64_t bytes = 0;
  uint64_t gpu_wait_ns = 0;
  uint64_t peer_wait_ns = 0;
  uint64_t transfer_ns = 0;
  uint64_t flush_ns = 0;
};

/// Records this process's collectives in the table that its agent reads. The functions store to
/// memory, without a lock, a system call or waiting; records that find no room are dropped and
/// counted. Without an agent it keeps the operations in flight, so that the next agent gets them.
/// Writes nothing to the agent in a forked child. Any thread may call, except where noted.
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

  /// Describes a communicator. An id that is described again takes the new description. Takes a
  /// lock: not for the hot path. InvalidArgument; ResourceExhausted: more communicators at once
  /// than the table holds.
  Status Describe(const CommunicatorDescription& description);
  /// Removes a communicator and its transfers.
  void Forget(uint64_t communicator);

  /// Begins an operation. The caller fills in what the operation is; times, step and totals are set
  /// here. Returns a handle, or 0 when there was no room.
  uint64_t Begin(agent::CollectiveValues values, const BeginOptions& options);
  /// Marks when a deferred operation starts to run. The first of several calls counts.
  void Started(uint64_t handle);
  /// Sets, before End(), how long the device was busy with the operation.
  void DeviceTime(uint64_t handle, uint64_t ns);
  void Flag(uint64_t handle, uint16_t flags);
  void End(uint64_t handle);

  void Add(const Transfer& transfer);
  /// Sets what the current transfer with this peer waits for, from now on.
  void Edge(uint64_t communicator, uint32_t peer, agent::Direction direction,
            agent::EdgeState state);

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
