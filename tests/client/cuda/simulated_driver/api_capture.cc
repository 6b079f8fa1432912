// Streams that are captured in graphs, and graphs that are launched.

#include <cuda.h>

#include <memory>

#include "tests/client/cuda/simulated_driver/call.h"

using holdfast::cuda::simulated::Call;
using holdfast::cuda::simulated::Graph;

namespace {
/// A graph and its executable are the same object, since a captured graph does not change.
Graph* Of(void* handle) { return static_cast<Graph*>(handle); }
}  // namespace

CUresult cuStreamBeginCapture(CUstream handle, CUstreamCaptureMode mode) {
  Call call(__func__);
  if (call.failed()) return call.result;
  if (handle == nullptr || handle == CU_STREAM_LEGACY) {
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  auto stream = call.StreamOf(handle);
  return stream == nullptr ? call.result : call.machine.captures.Begin(stream, mode);
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph* graph) {
  Call call(__func__);
  *graph = nullptr;
  if (call.failed()) return call.result;
  auto stream = call.StreamOf(handle);
  if (stream == nullptr) return call.result;
  Graph made;
  const CUresult result = call.machine.captures.End(stream, &made);
  if (made != nullptr) {
    *graph = reinterpret_cast<CUgraph>(std::make_unique<Graph>(std::move(made)).release());
  }
  return result;
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  Call call(__func__);
  if (call.failed()) return call.result;
  auto stream = call.StreamOf(handle);
  if (stream == nullptr) return call.result;
  *status = stream->capture == nullptr ? CU_STREAM_CAPTURE_STATUS_NONE
            : stream->capture->valid   ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                                       : CU_STREAM_CAPTURE_STATUS_INVALIDATED;
  return CUDA_SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  Call call(__func__, Call::Needs::kNothing);
  if (!call.failed()) *mode = call.machine.captures.Exchange(*mode);
  return call.result;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec* made, CUgraph graph, unsigned long long flags) {
  Call call(__func__);
  if (call.failed()) return call.result;
  if (graph == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  *made = reinterpret_cast<CUgraphExec>(std::make_unique<Graph>(*Of(graph)).release());
  return CUDA_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec graph, CUstream handle) {
  Call call(__func__);
  if (call.failed()) return call.result;
  auto stream = call.StreamOf(handle);
  if (stream == nullptr) return call.result;
  for (const auto& work : **Of(graph)) call.machine.Enqueue(*stream, work);
  return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph graph) {
  const std::unique_ptr<Graph> gone(Of(graph));
  return CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(CUgraphExec graph) {
  const std::unique_ptr<Graph> gone(Of(graph));
  return CUDA_SUCCESS;
}
