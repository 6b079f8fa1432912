#include "tests/client/cuda/simulated_driver/call.h"

namespace holdfast::cuda::simulated {

std::vector<CUcontext>& CurrentContexts() {
  thread_local std::vector<CUcontext> contexts;
  return contexts;
}

Call::Call(const char* function, Needs needs) : machine(Machine::Get()), lock(machine.mutex) {
  result = machine.TakeCallFailure(function);
  if (result == CUDA_SUCCESS && !machine.initialised) result = CUDA_ERROR_NOT_INITIALIZED;
  if (result != CUDA_SUCCESS || needs == Needs::kNothing) return;
  if (CurrentContexts().empty()) {
    result = CUDA_ERROR_INVALID_CONTEXT;
    return;
  }
  context = machine.FindContext(CurrentContexts().back());
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
