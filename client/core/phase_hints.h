#pragma once

#include "agent/api/segment_layout.h"

namespace holdfast::client {

/// Tells the agent what the trainer is doing: a few stores to shared memory, no lock and no system
/// call. Without an agent it only counts, so that the next one learns what holds. In a forked child
/// it does nothing. Begin and End: any threads; the others: one thread at a time.
class PhaseHints {
 public:
  PhaseHints();
  ~PhaseHints();
  PhaseHints(const PhaseHints&) = delete;
  PhaseHints& operator=(const PhaseHints&) = delete;

  /// Phases nest and overlap over threads. A number that is no phase, and an End without a Begin,
  /// change nothing.
  void Begin(uint32_t phase);
  void End(uint32_t phase);

  /// From now on `control`, which stays mapped until Detach(), is told.
  void Attach(agent::SegmentControl& control);
  /// Waits for those who are just telling.
  void Detach();
  /// Tells all that holds: the agent forgets when it welcomes a trainer.
  void Repeat();

 private:
  struct State;
  State* const state_;  // null: there was no memory for it
};

}  // namespace holdfast::client
