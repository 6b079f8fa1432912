#include "testing/world/sim_scheduler.h"

#include <poll.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdlib>

namespace holdfast {
namespace {
constexpr size_t kStackBytes = 512 << 10;
constexpr size_t kGuardBytes = 4096;
constexpr uint64_t kStepsMax = 5'000'000;

/// Stacks are used again: mapping a new one for each thread would dominate short simulations.
std::vector<void*>& FreeStacks() {
  static std::vector<void*> stacks;
  return stacks;
}

void* TakeStack() {
  std::vector<void*>& free = FreeStacks();
  if (!free.empty()) {
    void* stack = free.back();
    free.pop_back();
    return stack;
  }
  void* stack = ::mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stack == MAP_FAILED || ::mprotect(stack, kGuardBytes, PROT_NONE) != 0) std::abort();
  return stack;
}

SimScheduler* g_entering = nullptr;
}  // namespace

struct SimScheduler::Fiber {
  ThreadId id = 0;
  SimProcess* process = nullptr;
  std::function<void()> body;
  void* stack = nullptr;
  ucontext_t context{};  // until its first step
  bool begun = false;
  std::jmp_buf saved{};
  const void* object = nullptr;  // that it waits for
  bool blocked = false;
  bool notified = false;
  bool done = false;
  TimePoint deadline = TimePoint::max();
};

SimScheduler::SimScheduler(const SimSchedulerOptions& options)
    : options_(options),
      order_(options.seed * 0x9e3779b97f4a7c15ULL + 1),
      bits_(options.seed ^ 0x5851f42d4c957f2dULL),
      timed_([](const auto& a, const auto& b) {
        return a.first != b.first ? a.first < b.first : a.second->id < b.second->id;
      }) {}

SimScheduler::~SimScheduler() {
  for (auto& [id, fiber] : fibers_) {
    if (fiber->stack != nullptr) FreeStacks().push_back(fiber->stack);
  }
}

void SimScheduler::AddToTrace(uint64_t value) {
  trace_ = (trace_ ^ value) * 0x100000001b3ULL;
  trace_ ^= trace_ >> 29;
}

SimScheduler::Fiber* SimScheduler::Make(SimProcess* process, std::function<void()> body) {
  auto fiber = std::make_unique<Fiber>();
  fiber->id = next_id_++;
  fiber->process = process;
  fiber->body = std::move(body);
  fiber->stack = TakeStack();
  ::getcontext(&fiber->context);
  fiber->context.uc_stack.ss_sp = fiber->stack;
  fiber->context.uc_stack.ss_size = kStackBytes;
  fiber->context.uc_link = nullptr;
  ::makecontext(&fiber->context, &SimScheduler::Enter, 0);
  Fiber* raw = fiber.get();
  fibers_[raw->id] = std::move(fiber);
  runnable_.push_back(raw);
  ++live_;
  return raw;
}

void SimScheduler::Enter() {
  SimScheduler& scheduler = *g_entering;
  Fiber* fiber = scheduler.current_;
  fiber->body();
  fiber->body = nullptr;
  fiber->done = true;
  --scheduler.live_;
  scheduler.Wake(fiber, /*all=*/true);
  scheduler.Switch();
  std::abort();  // a finished fiber never runs again
}

void SimScheduler::Switch() {
  // Without the signal mask, which swapcontext() would save with two system calls.
  if (_setjmp(current_->saved) == 0) _longjmp(loop_, 1);
}

SimProcess* SimScheduler::current_process() const {
  return current_ != nullptr ? current_->process : nullptr;
}

void SimScheduler::Spawn(SimProcess& process, std::function<void()> body) {
  Make(&process, std::move(body));
}

Scheduler::ThreadId SimScheduler::StartThread(std::function<void()> body) {
  return Make(current_->process, std::move(body))->id;
}

void SimScheduler::JoinThread(ThreadId thread) {
  auto found = fibers_.find(thread);
  if (found == fibers_.end()) return;  // ended, and was removed
  Fiber* fiber = found->second.get();
  while (!fiber->done) {
    Block(fiber, TimePoint::max());
    if (!fibers_.contains(thread)) return;
  }
}

void SimScheduler::MakeRunnable(Fiber* fiber, bool notified) {
  fiber->blocked = false;
  fiber->notified = notified;
  fiber->object = nullptr;
  if (fiber->deadline != TimePoint::max()) timed_.erase({fiber->deadline, fiber});
  fiber->deadline = TimePoint::max();
  runnable_.push_back(fiber);
}

bool SimScheduler::Block(const void* object, TimePoint deadline) {
  Fiber* fiber = current_;
  fiber->blocked = true;
  fiber->object = object;
  fiber->deadline = deadline;
  if (object != nullptr) waiting_[object].push_back(fiber);
  if (deadline != TimePoint::max()) timed_.insert({deadline, fiber});
  Switch();
  return fiber->notified;
}

bool SimScheduler::Wait(const void* object, TimePoint deadline) { return Block(object, deadline); }

void SimScheduler::Wake(const void* object, bool all) {
  auto found = waiting_.find(object);
  if (found == waiting_.end()) return;
  std::vector<Fiber*>& waiters = found->second;
  if (all || waiters.size() == 1) {
    const std::vector<Fiber*> woken = std::move(waiters);
    waiting_.erase(found);
    for (Fiber* fiber : woken) MakeRunnable(fiber, true);
    return;
  }
  const size_t index = order_.Below(waiters.size());
  Fiber* fiber = waiters[index];
  waiters.erase(waiters.begin() + static_cast<std::ptrdiff_t>(index));
  MakeRunnable(fiber, true);
}

void SimScheduler::Yield() {
  if (!order_.OneIn(options_.yield_one_in)) return;
  runnable_.push_back(current_);
  Switch();
}

void SimScheduler::SleepFor(Clock::Duration duration) {
  Block(nullptr, now_ + std::max(duration, Clock::Duration(1)));
}

void SimScheduler::Pause(SimProcess& process, Clock::Duration time) {
  process.paused_until = std::max(process.paused_until, now_ + time);
}

void SimScheduler::AwaitSteps(SimProcess& process, uint64_t steps, TimePoint deadline) {
  step_waiters_.push_back({&process, process.steps + steps, current_});
  Block(nullptr, deadline);
  std::erase_if(step_waiters_, [&](const StepWaiter& one) { return one.fiber == current_; });
}

void SimScheduler::WakeStepWaiter(const SimProcess& process) {
  for (const StepWaiter& waiter : step_waiters_) {
    if (waiter.process != &process || waiter.at > process.steps || !waiter.fiber->blocked) continue;
    MakeRunnable(waiter.fiber, true);
    runnable_.pop_back();
    next_ = waiter.fiber;
    return;
  }
}

int SimScheduler::Poll(pollfd* fds, size_t count, int timeout_ms) {
  const TimePoint deadline =
      timeout_ms < 0 ? TimePoint::max() : now_ + std::chrono::milliseconds(timeout_ms);
  for (;;) {
    const int ready = ::poll(fds, count, 0);
    if (ready != 0 || now_ >= deadline) return ready;
    Block(&polls_, deadline);
  }
}

void SimScheduler::WakeExpired() {
  while (!timed_.empty() && timed_.begin()->first <= now_) {
    Fiber* fiber = timed_.begin()->second;
    if (fiber->object != nullptr) {
      auto found = waiting_.find(fiber->object);
      std::erase(found->second, fiber);
      if (found->second.empty()) waiting_.erase(found);
    }
    MakeRunnable(fiber, false);
  }
}

SimScheduler::Fiber* SimScheduler::PickNext() {
  if (next_ != nullptr) return std::exchange(next_, nullptr);
  size_t able = 0;
  for (const Fiber* fiber : runnable_) able += fiber->process->paused_until <= now_ ? 1 : 0;
  if (able == 0) return nullptr;
  uint64_t skip = order_.Below(able);
  for (size_t i = 0;; ++i) {
    Fiber* fiber = runnable_[i];
    if (fiber->process->paused_until > now_ || skip-- > 0) continue;
    // The order of the others does not matter, because the next choice is random.
    runnable_[i] = runnable_.back();
    runnable_.pop_back();
    return fiber;
  }
}

bool SimScheduler::SkipIdleTime() {
  TimePoint next = timed_.empty() ? TimePoint::max() : timed_.begin()->first;
  for (const Fiber* fiber : runnable_) next = std::min(next, fiber->process->paused_until);
  if (next == TimePoint::max()) return false;
  now_ = std::max(now_, next);
  return true;
}

/// Runs the current thread until it switches back. Has no local variables, which the jump would not
/// restore.
void SimScheduler::Resume() {
  if (_setjmp(loop_) != 0) return;
  if (current_->begun) _longjmp(current_->saved, 1);
  current_->begun = true;
  ::setcontext(&current_->context);
}

void SimScheduler::Step(Fiber* fiber) {
  ++steps_;
  ++fiber->process->steps;
  AddToTrace(fiber->id * 1'000'003 + static_cast<uint64_t>(now_.time_since_epoch().count()));
  current_ = fiber;
  g_entering = this;
  Resume();
  current_ = nullptr;
  now_ += Clock::Duration(1 + order_.Below(options_.step_ns_max));
  if (!step_waiters_.empty()) WakeStepWaiter(*fiber->process);
  if (!fiber->done) return;
  FreeStacks().push_back(fiber->stack);
  fiber->stack = nullptr;
  fibers_.erase(fiber->id);
}

bool SimScheduler::Run(std::function<void()> body) {
  Scheduler::Install(this);
  const ThreadId first = Make(&main_process_, std::move(body))->id;
  while (fibers_.contains(first)) {
    WakeExpired();
    Fiber* fiber = PickNext();
    if (fiber == nullptr) {
      if (SkipIdleTime()) continue;
      problem_ = "all threads wait for each other";
      break;
    }
    Step(fiber);
    if (steps_ < kStepsMax) continue;
    problem_ = "too many steps";
    break;
  }
  if (problem_.empty() && live_ != 0) problem_ = "threads are left";
  Scheduler::Install(nullptr);
  return problem_.empty();
}

}  // namespace holdfast
