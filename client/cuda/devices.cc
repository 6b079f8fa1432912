#include "client/cuda/devices.h"

namespace holdfast::cuda {
namespace {
CUresult OpenDevice(const Driver& driver, int32_t index, Device* device) {
  CUresult result = driver.DeviceGet(&device->device, index);
  if (result == CUDA_SUCCESS) result = driver.PrimaryCtxRetain(&device->context, device->device);
  if (result != CUDA_SUCCESS) return result;
  CurrentContext current(driver, device->context);
  for (CUstream& stream : device->streams) {
    if (result == CUDA_SUCCESS) result = driver.StreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  }
  if (result != CUDA_SUCCESS) return result;
  void* samples = nullptr;
  result = driver.HostAlloc(&samples, kSamplesMax * kSampleBytes, 0);
  device->samples = static_cast<std::byte*>(samples);
  if (result == CUDA_SUCCESS) {
    device->gather = Gather::Load(driver, device->device, device->streams[0]);
  }
  return result;
}
}  // namespace

bool IsCaptured(const Driver& driver, CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult result = driver.StreamIsCapturing(stream, &status);
  return status != CU_STREAM_CAPTURE_STATUS_NONE || result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

Devices::~Devices() {
  for (auto& [index, device] : all_) {
    CurrentContext current(driver_, device.context);
    for (CUstream stream : device.streams) {
      if (stream == nullptr) continue;
      driver_.StreamSynchronize(stream);
      driver_.StreamDestroy(stream);
    }
    if (device.samples != nullptr) driver_.HostFree(device.samples);
    device.gather = nullptr;
  }
  for (auto& [index, device] : all_) {
    if (device.context != nullptr) driver_.PrimaryCtxRelease(device.device);
  }
}

CUresult Devices::Open(int32_t index) { return OpenDevice(driver_, index, &all_[index]); }

const Device* Devices::Find(int32_t index) const {
  const auto found = all_.find(index);
  return found == all_.end() ? nullptr : &found->second;
}

std::vector<CUcontext> Devices::ContextsOf(CUstream stream) const {
  const bool is_default =
      stream == nullptr || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
  CurrentContext current(driver_, first());
  CUcontext context = nullptr;
  if (!is_default && driver_.StreamGetCtx(stream, &context) == CUDA_SUCCESS) return {context};
  std::vector<CUcontext> contexts;
  for (const auto& [index, device] : all_) contexts.push_back(device.context);
  return contexts;
}

void Devices::DestroyEvents(const std::vector<CUevent>& events) const {
  CurrentContext current(driver_, first());
  for (CUevent event : events) driver_.EventDestroy(event);
}

CUresult Devices::Drain() const {
  CUresult first = CUDA_SUCCESS;
  for (const auto& [index, device] : all_) {
    CurrentContext current(driver_, device.context);
    for (CUstream stream : device.streams) {
      const CUresult result = driver_.StreamSynchronize(stream);
      if (first == CUDA_SUCCESS) first = result;
    }
  }
  return first;
}

}  // namespace holdfast::cuda
