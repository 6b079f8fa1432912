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

/// One transfer to or from a peer that ended, and what its time went into.
struct Transfer {
  uint64_t communicator = 0;
  uint32_t peer = 0;  // index in it
  agent::Direction direction = agent::Direction::kSend;
  uint64_t bytes = 0;
  uint64_t gpu_wait_ns = 0;
  uint64_t peer_wait_ns = 0;
  uint64_t transfer_ns = 0;
  uint64_t flush_ns = 0;
};

/// Writes what this process's collectives do into the table that its agent reads: stores to
/// memory, no lock, no system call, no waiting; what finds no room is counted and left out. Without
/// an agent it keeps what is in flight, so that the next one learns it. In a forked child nothing
/// is written to the agent. Any thread, except where said.
class CollectiveRecorder {
 public:
  CollectiveRecorder();
  ~CollectiveRecorder();
  CollectiveRecorder(const CollectiveRecorder&) = delete;
  CollectiveRecorder& operator=(const CollectiveRecorder&) = delete;

  /// The one of this process, for callers that have no client, such as the NCCL plugin; never
  /// destroyed. The first client of the process writes through it too.
  static CollectiveRecorder& OfProcess();
  /// For that client: false when another one has it.
  bool Claim();
  /// Detached already. The next client starts without steps and without communicator 0; what others
  /// told stays.
  void Release();

  /// InvalidArgument; ResourceExhausted: more communicators at once than the table holds. An id
  /// that is described again takes the new description. Takes a lock: not for the hot path.
  Status Describe(const CommunicatorDescription& description);
  /// Its transfers are forgotten with it.
  void Forget(uint64_t communicator);

  /// The caller fills in what the operation is; times, step and totals are taken here. A handle, 0
  /// when there was no room.
  uint64_t Begin(agent::CollectiveValues values, const BeginOptions& options);
  /// The first of several calls counts.
  void Started(uint64_t handle);
  /// Added before End(): how long the device was busy with it.
  void DeviceTime(uint64_t handle, uint64_t ns);
  void Flag(uint64_t handle, uint16_t flags);
  void End(uint64_t handle);

  void Add(const Transfer& transfer);
  /// What the transfer under way with this peer waits for, from now on.
  void Edge(uint64_t communicator, uint32_t peer, agent::Direction direction,
            agent::EdgeState state);

  /// The trainer begins `step`, so the one before is over. The same step again changes nothing;
  /// with `forward_only` nor does a smaller one.
  void Step(uint64_t step, bool forward_only);

  /// What found no room or made no sense, while an agent was there or not.
  uint64_t dropped() const;

  /// Does the agent want per-peer times of the operations of now?
  bool Sampling() const;

  // One thread at a time, the link's.

  /// From now on `control`, which stays mapped until Detach(), is told.
  void Attach(agent::SegmentControl& control);
  /// Waits for those who are just telling.
  void Detach();
  /// Tells all that holds: the agent forgets when it welcomes a trainer.
  void Repeat();

 private:
  struct State;
  class Telling;

  void Advance(uint64_t step, uint64_t before, bool first);

  State* const state_;  // null: there was no memory for it
};

/// CLOCK_MONOTONIC, nanoseconds: what the times in the table are.
uint64_t MonotonicNs();

}  // namespace holdfast::client
