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

/// Lies in memory that a forked child finds zeroed: the segment is not mapped there.
struct PhaseHints::State {
  std::atomic<agent::SegmentControl*> control;
  std::atomic<uint32_t> telling;
  std::atomic<uint32_t> open[agent::kPhasesMax];

  /// Whoever stores last has seen the count as it was after that, so the last word is right.
  void Tell(agent::SegmentControl& shared, uint32_t phase) {
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
  state_->telling.fetch_add(1);
  state_->open[phase].fetch_add(1);
  if (agent::SegmentControl* control = state_->control.load()) {
    control->phases[phase].begun.fetch_add(1, std::memory_order_relaxed);
    state_->Tell(*control, phase);
  }
  state_->telling.fetch_sub(1);
}

void PhaseHints::End(uint32_t phase) {
  if (state_ == nullptr || !IsPhase(phase)) return;
  uint32_t open = state_->open[phase].load();
  while (open > 0 && !state_->open[phase].compare_exchange_weak(open, open - 1)) {
  }
  if (open == 0) return;
  state_->telling.fetch_add(1);
  if (agent::SegmentControl* control = state_->control.load()) state_->Tell(*control, phase);
  state_->telling.fetch_sub(1);
}

void PhaseHints::Attach(agent::SegmentControl& control) {
  if (state_ == nullptr) return;
  state_->control.store(&control);
  Repeat();
}

void PhaseHints::Detach() {
  if (state_ == nullptr) return;
  state_->control.store(nullptr);
  while (state_->telling.load() > 0) std::this_thread::yield();
}

void PhaseHints::Repeat() {
  agent::SegmentControl* control = state_ == nullptr ? nullptr : state_->control.load();
  if (control == nullptr) return;
  for (uint32_t phase = 1; phase < agent::kPhasesMax; ++phase) state_->Tell(*control, phase);
}

}  // namespace holdfast::client
