#pragma once

#include <cuda.h>

#include <memory>
#include <mutex>

#include "tests/client/cuda/simulated_driver/machine.h"

namespace holdfast::cuda::simulated {

/// The beginning of every driver function: takes the lock, applies a failure that a test has
/// requested, and finds the thread's current context and its sticky error.
class Call {
 public:
  enum class Needs { kNothing, kContext, kContextEvenIfBroken };
  explicit Call(const char* function, Needs needs = Needs::kContext);

  bool failed() const { return result != CUDA_SUCCESS; }
  /// Returns null when the handle is stale or its context is broken, and sets `result`.
  std::shared_ptr<Stream> StreamOf(CUstream handle);
  /// Waits for `point`. Returns the error of `of`, if any.
  CUresult Synchronise(const Context& of, const Point& point);

  Machine& machine;
  std::unique_lock<std::mutex> lock;
  CUresult result = CUDA_SUCCESS;
  std::shared_ptr<Context> context;
};

}  // namespace holdfast::cuda::simulated
