#include "tests/client/cuda/simulated_driver/capture.h"

#include <utility>

#include "tests/client/cuda/simulated_driver/machine.h"

namespace holdfast::cuda::simulated {
namespace {
/// Calls that may synchronise with, or change, state that a capture needs. The documentation names
/// only some of them; drivers have refused the others, too.
const std::set<std::string>& UnsafeCalls() {
  static const std::set<std::string> calls = {
      "cuMemAlloc_v2",    "cuMemFree_v2",    "cuMemHostRegister_v2", "cuMemHostUnregister",
      "cuMemHostAlloc",   "cuMemFreeHost",   "cuStreamSynchronize",  "cuEventSynchronize",
      "cuEventQuery",
      "cuCtxSynchronize", "cuEventCreate",   "cuStreamCreate",       "cuStreamDestroy_v2",
      "cuMemcpyDtoH_v2",  "cuMemcpyHtoD_v2",
  };
  return calls;
}
}  // namespace

CUresult Captures::Begin(const std::shared_ptr<Stream>& stream, CUstreamCaptureMode mode) {
  if (stream->capture != nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  stream->capture = std::make_shared<Capture>();
  stream->capture->mode = mode;
  stream->capture->thread = std::this_thread::get_id();
  stream->capture->origin = stream.get();
  active_.insert(stream->capture);
  return CUDA_SUCCESS;
}

CUresult Captures::End(const std::shared_ptr<Stream>& stream, Graph* graph) {
  *graph = nullptr;
  const std::shared_ptr<Capture> capture = stream->capture;
  if (capture == nullptr || capture->origin != stream.get()) return CUDA_ERROR_ILLEGAL_STATE;
  if (capture->thread != std::this_thread::get_id() &&
      capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED) {
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  }
  stream->capture = nullptr;
  active_.erase(capture);
  if (!capture->valid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (capture->joined) return CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  *graph = std::make_shared<const std::vector<std::function<CUresult()>>>(capture->work);
  return CUDA_SUCCESS;
}

CUstreamCaptureMode Captures::Exchange(CUstreamCaptureMode mode) {
  auto [found, made] =
      modes_.try_emplace(std::this_thread::get_id(), CU_STREAM_CAPTURE_MODE_GLOBAL);
  return std::exchange(found->second, mode);
}

CUresult Captures::Check(const std::string& function) {
  if (active_.empty() || UnsafeCalls().count(function) == 0) return CUDA_SUCCESS;
  const std::thread::id self = std::this_thread::get_id();
  auto found = modes_.find(self);
  const CUstreamCaptureMode mine =
      found == modes_.end() ? CU_STREAM_CAPTURE_MODE_GLOBAL : found->second;
  if (mine == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  CUresult result = CUDA_SUCCESS;
  for (const std::shared_ptr<Capture>& capture : active_) {
    const bool own = capture->thread == self && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    const bool others = mine == CU_STREAM_CAPTURE_MODE_GLOBAL && capture->thread != self &&
                        capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!own && !others) continue;
    capture->valid = false;
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return result;
}

}  // namespace holdfast::cuda::simulated
