#pragma once

#include <cuda.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/client/cuda/simulated_driver/capture.h"
#include "tests/client/cuda/simulated_driver/control.h"
#include "tests/client/cuda/simulated_driver/memory.h"

namespace holdfast::cuda::simulated {

inline constexpr int kDevices = 2;

/// Work of a stream. Runs after the work queued before on the stream, and after `after`.
struct Operation {
  std::function<CUresult()> work;  // empty: only a point in the order
  std::vector<std::shared_ptr<Operation>> after;
  bool done = false;
};
/// Shared: the queue, the events that captured it and the operations that wait for it outlive each
/// other in any order.
using Point = std::shared_ptr<Operation>;

struct Stream;

struct Context {
  int device = 0;
  uint32_t retains = 0;
  CUresult error = CUDA_SUCCESS;   // of an operation that failed; sticky
  bool breaks = false;             // one has failed: no other begins
  size_t running = 0;              // operations
  std::shared_ptr<Stream> legacy;  // the default stream
};

/// A thread runs the queued work. Shared with that thread, which outlives the handle.
struct Stream {
  std::shared_ptr<Context> context;
  bool blocking = true;  // the legacy default stream and this one wait for each other
  bool destroyed = false;
  std::deque<Point> queue;
  Point last;
  std::shared_ptr<Capture> capture;
};

struct Event {
  std::shared_ptr<Context> context;
  Point captured;                    // null: never recorded, which counts as complete
  std::shared_ptr<Capture> capture;  // in which it was recorded
};

/// The devices and everything on them. Handles are numbers that are never reused, so that stale
/// ones are always recognised. One lock protects everything except the work itself; callers of
/// these functions hold it.
class Machine {
 public:
  /// Never destroyed: streams' threads may run until the process ends.
  static Machine& Get();

  std::mutex mutex;
  Memory memory;
  Captures captures;
  bool initialised = false;

  /// The contexts of the calling thread, innermost last. (ThreadSanitizer does not support
  /// thread-local variables of libraries that are loaded late.)
  std::vector<CUcontext>& CurrentContexts() { return current_[std::this_thread::get_id()]; }
  CUcontext Retain(int device);
  bool Release(std::unique_lock<std::mutex>& lock, int device);
  std::shared_ptr<Context> FindContext(CUcontext handle) const;
  CUcontext HandleOf(const Context& context) const;

  CUstream MakeStream(const std::shared_ptr<Context>& context, bool blocking);
  /// `handle` null or CU_STREAM_LEGACY: the default stream of `current`. Returns null when there is
  /// none.
  std::shared_ptr<Stream> FindStream(CUstream handle, const Context& current) const;
  bool DestroyStream(CUstream handle);

  CUevent MakeEvent(const std::shared_ptr<Context>& context);
  std::shared_ptr<Event> FindEvent(CUevent handle) const;
  bool DestroyEvent(CUevent handle) { return events_.erase(Number(handle)) != 0; }

  Point Enqueue(Stream& stream, std::function<CUresult()> work, const Point& after = nullptr);
  void Await(std::unique_lock<std::mutex>& lock, const Point& point);
  void AwaitContext(std::unique_lock<std::mutex>& lock, const Context& context);

  /// Returns the error that a test has requested for this call of `function`, if any.
  CUresult TakeCallFailure(const std::string& function);
  bool TakeCopyFailure(int device);
  void FailCall(const std::string& function, uint64_t n, CUresult result);
  void FailCopy(int device, uint64_t n) { copy_failures_[device] = n; }
  void FailNothing();
  void HoldCopy(int device, uint64_t n);
  void LetCopiesGo();
  /// Blocks while a test holds the copy that begins now.
  void AwaitPermission(std::unique_lock<std::mutex>& lock, int device);
  void CopiesQueued(uint64_t n) { copies_queued_ += n; }
  void CopiesEnded(uint64_t n) { copies_queued_ -= n; }
  void CopyBegins() { ++copies_begun_; }
  void Misuse() { ++misuses_; }
  Counts CountAll() const;

 private:
  template <typename Handle>
  static uint64_t Number(Handle handle) {
    return reinterpret_cast<uint64_t>(handle);
  }
  uint64_t NextHandle() { return next_handle_ += 16; }
  void Launch(const std::shared_ptr<Stream>& stream);
  void Run(const std::shared_ptr<Stream>& stream);

  std::condition_variable changed_;
  uint64_t next_handle_ = 0x1000;
  std::map<std::thread::id, std::vector<CUcontext>> current_;
  std::map<uint64_t, std::shared_ptr<Context>> contexts_;
  std::map<uint64_t, std::shared_ptr<Stream>>
      streams_;  // destroyed ones until their queue is empty
  std::map<uint64_t, std::shared_ptr<Event>> events_;
  struct CallFailure {
    uint64_t n = 0;
    CUresult result = CUDA_SUCCESS;
  };
  std::map<std::string, CallFailure> call_failures_;
  std::map<int, uint64_t> copy_failures_;
  std::map<int, uint64_t> copies_held_;  // the number of the next copy that waits
  uint64_t copies_queued_ = 0;
  uint64_t copies_begun_ = 0;
  uint64_t misuses_ = 0;
};

/// Pauses a stream's thread now and then, by the seed in HOLDFAST_SIMULATED_DRIVER_SEED and without
/// the lock, to provoke races.
void Jitter();

}  // namespace holdfast::cuda::simulated
