#include "tests/client/cuda/simulated_driver/call.h"

#include <vector>

namespace holdfast::cuda::simulated {

Call::Call(const char* function, Needs needs) : machine(Machine::Get()), lock(machine.mutex) {
  result = machine.TakeCallFailure(function);
  if (result == CUDA_SUCCESS && !machine.initialised) result = CUDA_ERROR_NOT_INITIALIZED;
  if (result == CUDA_SUCCESS) result = machine.captures.Check(function);
  if (result != CUDA_SUCCESS || needs == Needs::kNothing) return;
  const std::vector<CUcontext>& current = machine.CurrentContexts();
  if (current.empty()) {
    result = CUDA_ERROR_INVALID_CONTEXT;
    return;
  }
  context = machine.FindContext(current.back());
  if (context == nullptr) {
    result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
  } else if (needs == Needs::kContext) {
    result = context->error;
  }
}

std::shared_ptr<Stream> Call::StreamOf(CUstream handle) {
  auto stream = machine.FindStream(handle, *context);
  result = stream == nullptr ? CUDA_ERROR_INVALID_HANDLE : stream->context->error;
  return failed() ? nullptr : stream;
}

CUresult Call::Synchronise(const Context& of, const Point& point) {
  machine.Await(lock, point);
  return of.error;
}

}  // namespace holdfast::cuda::simulated
