#pragma once

#include "agent/api/segment_layout.h"

namespace holdfast::client {

/// Publishes the trainer's phases to the agent with a few stores to shared memory, without a lock
/// or a system call. Without an agent the phases are only counted, so that the next agent gets the
/// current state. Does nothing in a forked child. Any thread may call Begin and End. Only one
/// thread at a time may call the other functions.
class PhaseHints {
 public:
  PhaseHints();
  ~PhaseHints();
  PhaseHints(const PhaseHints&) = delete;
  PhaseHints& operator=(const PhaseHints&) = delete;

  /// Phases nest, and phases of different threads may overlap. A number that is not a phase and an
  /// End without a Begin have no effect.
  void Begin(uint32_t phase);
  void End(uint32_t phase);

  /// Publishes to `control` from now on. `control` stays mapped until Detach().
  void Attach(agent::SegmentControl& control);
  /// Returns when no thread stores to the control block any more.
  void Detach();
  /// Publishes the full state again: the agent clears it when it welcomes a trainer.
  void Republish();

 private:
  struct State;
  State* const state_;  // null: its allocation failed
};

}  // namespace holdfast::client
