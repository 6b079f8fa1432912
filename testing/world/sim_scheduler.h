#pragma once

#include <csetjmp>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "base/scheduler.h"

namespace holdfast {

/// A process of the simulated system: a group of threads that is paused together. Threads belong to
/// the process of the thread that started them.
struct SimProcess {
  std::string name;
  Clock::TimePoint paused_until{};
  uint64_t steps = 0;  // how often one of its threads has run
};

struct SimSchedulerOptions {
  uint64_t seed = 1;
  /// One of this number of lock operations lets another thread run.
  uint64_t yield_one_in = 8;
  /// Longest virtual time that one step of a thread takes.
  uint64_t step_ns_max = 20'000;
};

/// Runs the threads of a simulated system as fibers of one operating-system thread. The seed
/// decides which runnable thread is next. Virtual time advances a little at each step, and jumps to
/// the next deadline when no thread can run.
class SimScheduler final : public Scheduler {
 public:
  explicit SimScheduler(const SimSchedulerOptions& options);
  ~SimScheduler() override;
  SimScheduler(const SimScheduler&) = delete;
  SimScheduler& operator=(const SimScheduler&) = delete;

  /// Installs this scheduler, runs `body` as the first thread, and removes the scheduler when
  /// `body` has returned. All other threads must have ended by then. Returns false, with problem()
  /// set, if no thread can ever run again or after too many steps.
  bool Run(std::function<void()> body);
  const std::string& problem() const { return problem_; }

  /// Starts a thread of another process. It ends on its own and is not joined.
  void Spawn(SimProcess& process, std::function<void()> body);
  SimProcess* current_process() const;
  /// Stops the threads of the process for this time.
  void Pause(SimProcess& process, Clock::Duration time);
  /// Blocks until the threads of the process have made `steps` more steps or `deadline` has passed.
  /// The caller then runs next, so that nothing happens in between.
  void AwaitSteps(SimProcess& process, uint64_t steps, TimePoint deadline);
  void SleepFor(Clock::Duration duration);

  uint64_t steps() const { return steps_; }
  size_t threads() const { return live_; }
  /// A checksum of everything that has run, in order.
  uint64_t trace() const { return trace_; }
  void AddToTrace(uint64_t value);

  // Scheduler.
  ThreadId StartThread(std::function<void()> body) override;
  void JoinThread(ThreadId thread) override;
  void Yield() override;
  TimePoint Now() const override { return now_; }
  bool Wait(const void* object, TimePoint deadline) override;
  void Wake(const void* object, bool all) override;
  int Poll(pollfd* fds, size_t count, int timeout_ms) override;
  void WakePolls() override { Wake(&polls_, /*all=*/true); }
  uint64_t RandomBits() override { return bits_.Next(); }

 private:
  struct Fiber;
  struct StepWaiter {
    const SimProcess* process;
    uint64_t at;
    Fiber* fiber;
  };

  Fiber* Make(SimProcess* process, std::function<void()> body);
  /// Gives the processor back to the scheduler's loop.
  void Switch();
  bool Block(const void* object, TimePoint deadline);
  void MakeRunnable(Fiber* fiber, bool notified);
  Fiber* PickNext();
  void WakeExpired();
  /// Advances the time to the next deadline. Returns false if there is none.
  bool SkipIdleTime();
  void Resume();
  void Step(Fiber* fiber);
  void WakeStepWaiter(const SimProcess& process);
  static void Enter();

  const SimSchedulerOptions options_;
  Random order_;
  Random bits_;
  TimePoint now_{std::chrono::hours(1)};
  uint64_t steps_ = 0;
  uint64_t trace_ = 0;
  size_t live_ = 0;
  uint64_t next_id_ = 1;
  std::string problem_;
  SimProcess main_process_{"main"};
  std::map<ThreadId, std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> runnable_;
  std::set<std::pair<TimePoint, Fiber*>,
           bool (*)(const std::pair<TimePoint, Fiber*>&, const std::pair<TimePoint, Fiber*>&)>
      timed_;
  std::unordered_map<const void*, std::vector<Fiber*>> waiting_;
  std::vector<StepWaiter> step_waiters_;
  Fiber* next_ = nullptr;     // runs before all others
  Fiber* current_ = nullptr;  // nullptr: the loop runs
  std::jmp_buf loop_{};
  char polls_ = 0;  // its address stands for all descriptors
};

/// The virtual time of a scheduler, with a separate wall clock, which may jump.
class SimClock final : public Clock {
 public:
  explicit SimClock(SimScheduler& scheduler) : scheduler_(scheduler) {}
  TimePoint Now() const override { return scheduler_.Now(); }
  int64_t WallNanos() const override {
    return 1'700'000'000'000'000'000 + scheduler_.Now().time_since_epoch().count() + jump_.count();
  }
  void SleepFor(Duration duration) override { scheduler_.SleepFor(duration); }
  /// Changes the wall clock only.
  void Jump(Duration by) { jump_ += by; }

 private:
  SimScheduler& scheduler_;
  Duration jump_{0};
};

}  // namespace holdfast
