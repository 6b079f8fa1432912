#pragma once

#include <cuda.h>

#include <memory>
#include <mutex>

#include "tests/client/cuda/simulated_driver/machine.h"

namespace holdfast::cuda::simulated {

/// How every driver function begins: the lock, a failure that a test asked for, the thread's
/// current context and whether it is still well.
class Call {
 public:
  enum class Needs { kNothing, kContext, kContextEvenIfBroken };
  explicit Call(const char* function, Needs needs = Needs::kContext);

  bool failed() const { return result != CUDA_SUCCESS; }
  /// Null when the handle is stale or its context broken; then `result` says so.
  std::shared_ptr<Stream> StreamOf(CUstream handle);
  /// Waits for `point`; the error of `of`, should it have one.
  CUresult Synchronise(const Context& of, const Point& point);

  Machine& machine;
  std::unique_lock<std::mutex> lock;
  CUresult result = CUDA_SUCCESS;
  std::shared_ptr<Context> context;
};

}  // namespace holdfast::cuda::simulated
