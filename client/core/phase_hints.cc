#include "client/core/phase_hints.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <new>
#include <thread>

namespace holdfast::client {
namespace {

bool IsPhase(uint32_t phase) { return phase > 0 && phase < agent::kPhasesMax; }

}  // namespace

/// Lives in memory that is zeroed in a forked child, where the segment is not mapped.
struct PhaseHints::State {
  std::atomic<agent::SegmentControl*> control;
  std::atomic<uint32_t> publishers;  // threads that may be storing to the control block
  std::atomic<uint32_t> open[agent::kPhasesMax];

  /// Stores the count until it is unchanged afterwards, so that the last store of concurrent calls
  /// is the current count.
  void Publish(agent::SegmentControl& shared, uint32_t phase) {
    uint32_t now = 0;
    do {
      now = open[phase].load();
      shared.phases[phase].open.store(now);
    } while (open[phase].load() != now);
  }

  static State* Map() {
    void* memory =
        ::mmap(nullptr, sizeof(State), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    if (::madvise(memory, sizeof(State), MADV_WIPEONFORK) == 0) return new (memory) State{};
    ::munmap(memory, sizeof(State));
    return nullptr;
  }
};

PhaseHints::PhaseHints() : state_(State::Map()) {}

PhaseHints::~PhaseHints() {
  if (state_ != nullptr) ::munmap(state_, sizeof(State));
}

void PhaseHints::Begin(uint32_t phase) {
  if (state_ == nullptr || !IsPhase(phase)) return;
  state_->publishers.fetch_add(1);
  state_->open[phase].fetch_add(1);
  if (agent::SegmentControl* control = state_->control.load()) {
    control->phases[phase].begun.fetch_add(1, std::memory_order_relaxed);
    state_->Publish(*control, phase);
  }
  state_->publishers.fetch_sub(1);
}

void PhaseHints::End(uint32_t phase) {
  if (state_ == nullptr || !IsPhase(phase)) return;
  uint32_t open = state_->open[phase].load();
  while (open > 0 && !state_->open[phase].compare_exchange_weak(open, open - 1)) {
  }
  if (open == 0) return;
  state_->publishers.fetch_add(1);
  if (agent::SegmentControl* control = state_->control.load()) state_->Publish(*control, phase);
  state_->publishers.fetch_sub(1);
}

void PhaseHints::Attach(agent::SegmentControl& control) {
  if (state_ == nullptr) return;
  state_->control.store(&control);
  Republish();
}

void PhaseHints::Detach() {
  if (state_ == nullptr) return;
  state_->control.store(nullptr);
  while (state_->publishers.load() > 0) std::this_thread::yield();
}

void PhaseHints::Republish() {
  agent::SegmentControl* control = state_ == nullptr ? nullptr : state_->control.load();
  if (control == nullptr) return;
  for (uint32_t phase = 1; phase < agent::kPhasesMax; ++phase) state_->Publish(*control, phase);
}

}  // namespace holdfast::client
