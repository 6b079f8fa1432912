// The device copier over CUDA's driver API, with two non-blocking copy streams per device. An event
// orders every save after the training stream, and the guard makes the training stream wait for the
// events of the last copies. Neither blocks the host.

#include <algorithm>
#include <cstdio>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "client/core/device_copier.h"
#include "client/cuda/devices.h"
#include "client/cuda/driver.h"
#include "client/cuda/prepared_copy.h"
#include "client/cuda/running_copy.h"

using holdfast::ErrorCode;
using holdfast::Status;
using holdfast::cuda::CopyGroup;
using holdfast::cuda::CurrentContext;
using holdfast::cuda::Device;
using holdfast::cuda::Devices;
using holdfast::cuda::Direction;
using holdfast::cuda::Driver;
using holdfast::cuda::PreparedCopy;
using holdfast::cuda::RunningCopy;

struct holdfast_device_context {
  explicit holdfast_device_context(const Driver& driver) : devices(driver) {}

  Devices devices;
  /// Of the last save. An unchanged state has the same pieces at every save.
  std::shared_ptr<const PreparedCopy> prepared;
  holdfast::Mutex mutex;
  std::map<void*, uint64_t> pinned HOLDFAST_GUARDED_BY(mutex);  // address → bytes

  /// Returns whether all places of `pieces` in `slot` are pinned: the kernel must not access other
  /// memory of the host.
  bool IsPinned(const void* slot, std::span<const holdfast_device_piece> pieces) {
    uint64_t end = 0;
    for (const holdfast_device_piece& piece : pieces) {
      end = std::max(end, piece.slot_offset + piece.bytes);
    }
    const auto at = reinterpret_cast<uint64_t>(slot);
    holdfast::MutexLock lock(mutex);
    return std::any_of(pinned.begin(), pinned.end(), [&](const auto& one) {
      const auto begin = reinterpret_cast<uint64_t>(one.first);
      return begin <= at && at + end <= begin + one.second;
    });
  }
};

struct holdfast_device_mark {
  std::vector<CUevent> events;  // one for each context of the stream
};

struct holdfast_device_copy {
  RunningCopy copy;
};

namespace {

int32_t Number(ErrorCode code) { return static_cast<int32_t>(code); }

int32_t ReportError(ErrorCode code, const std::string& message, char* text, size_t text_bytes) {
  if (text != nullptr && text_bytes > 0) std::snprintf(text, text_bytes, "%s", message.c_str());
  return Number(code);
}

int32_t Open(const int32_t* indices, size_t count, holdfast_device_context** context, char* text,
             size_t text_bytes) {
  *context = nullptr;
  std::string why;
  const Driver* driver = Driver::Load(&why);
  if (driver == nullptr) return ReportError(ErrorCode::kUnsupported, why, text, text_bytes);
  auto made = std::make_unique<holdfast_device_context>(*driver);
  for (size_t i = 0; i < count; ++i) {
    const CUresult result = made->devices.Open(indices[i]);
    if (result == CUDA_SUCCESS) continue;
    why = driver->Text(("CUDA device " + std::to_string(indices[i])).c_str(), result);
    return ReportError(ErrorCode::kUnsupported, why, text, text_bytes);
  }
  *context = made.release();
  return 0;
}

void Close(holdfast_device_context* context) { delete context; }

int32_t Pin(holdfast_device_context* context, void* memory, uint64_t bytes, char* text,
            size_t text_bytes) {
  const Driver& driver = context->devices.driver();
  CurrentContext current(driver, context->devices.first());
  CUresult result = driver.HostRegister(memory, bytes,
                                        CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
  if (result != CUDA_SUCCESS) {
    return ReportError(ErrorCode::kResourceExhausted, driver.Text("cuMemHostRegister", result),
                       text, text_bytes);
  }
  holdfast::MutexLock lock(context->mutex);
  context->pinned[memory] = bytes;
  return 0;
}

void Unpin(holdfast_device_context* context, void* memory) {
  holdfast::MutexLock lock(context->mutex);
  if (context->pinned.erase(memory) == 0) return;
  CurrentContext current(context->devices.driver(), context->devices.first());
  context->devices.driver().HostUnregister(memory);
}

CUresult Record(const Driver& driver, CUcontext context, CUstream stream,
                std::vector<CUevent>* events) {
  CurrentContext current(driver, context);
  CUevent event = nullptr;
  CUresult result = driver.EventCreate(&event, CU_EVENT_DISABLE_TIMING);
  if (result != CUDA_SUCCESS) return result;
  events->push_back(event);
  return driver.EventRecord(event, stream);
}

int32_t Mark(holdfast_device_context* context, void* stream, holdfast_device_mark** mark,
             char* text, size_t text_bytes) {
  const Driver& driver = context->devices.driver();
  auto* training_stream = static_cast<CUstream>(stream);
  auto made = std::make_unique<holdfast_device_mark>();
  for (CUcontext one : context->devices.ContextsOf(training_stream)) {
    {
      CurrentContext current(driver, one);
      if (holdfast::cuda::IsCaptured(driver, training_stream)) {
        context->devices.DestroyEvents(made->events);
        return ReportError(
            ErrorCode::kFailedPrecondition,
            "cannot save while a CUDA graph is being captured on this stream: save before or after "
            "the capture",
            text, text_bytes);
      }
    }
    CUresult result = Record(driver, one, training_stream, &made->events);
    if (result == CUDA_SUCCESS) continue;
    context->devices.DestroyEvents(made->events);
    return ReportError(ErrorCode::kIoError, driver.Text("marking the training stream", result),
                       text, text_bytes);
  }
  *mark = made.release();
  return 0;
}

void DropMark(holdfast_device_context* context, holdfast_device_mark* mark) {
  context->devices.DestroyEvents(mark->events);
  delete mark;
}

int32_t Start(holdfast_device_context* context, holdfast_device_mark* mark,
              const holdfast_device_piece* pieces, size_t count, void* slot,
              holdfast_device_copy** copy, char* text, size_t text_bytes) {
  const std::span all(pieces, count);
  const bool gather = context->IsPinned(slot, all);
  if (context->prepared == nullptr || !context->prepared->IsFor(all, gather)) {
    context->prepared = nullptr;  // first frees the memory of the former items
    context->prepared = PreparedCopy::Make(context->devices, all, Direction::kToHost, gather);
  }
  std::vector<CUevent> marks = std::move(mark->events);
  delete mark;
  std::unique_ptr<holdfast_device_copy> made(new holdfast_device_copy{
      {context->devices, context->prepared, std::move(marks), all, static_cast<std::byte*>(slot)}});
  const CUresult result = made->copy.Start();
  if (result != CUDA_SUCCESS) {
    made = nullptr;               // waits for the copies that were enqueued
    context->prepared = nullptr;  // the allocations may have changed under the same addresses
    return ReportError(ErrorCode::kIoError,
                       context->devices.driver().Text("copying from the device", result), text,
                       text_bytes);
  }
  *copy = made.release();
  return 0;
}

int32_t WaitPieces(holdfast_device_copy* copy, size_t want, size_t* done, char* text,
                   size_t text_bytes) {
  const Status status = copy->copy.Wait(want, done);
  return status.ok() ? 0 : ReportError(status.code(), status.message(), text, text_bytes);
}

int32_t IsQueued(const holdfast_device_copy* copy) { return copy->copy.is_queued() ? 1 : 0; }

int32_t Guard(holdfast_device_copy* copy, void* stream, char* text, size_t text_bytes) {
  const CUresult result = copy->copy.Guard(static_cast<CUstream>(stream));
  if (result == CUDA_SUCCESS) return 0;
  return ReportError(ErrorCode::kIoError,
                     copy->copy.devices().driver().Text("guarding the training stream", result),
                     text, text_bytes);
}

void Finish(holdfast_device_copy* copy) { delete copy; }

int32_t Restore(holdfast_device_context* context, const holdfast_device_piece* pieces, size_t count,
                const void* slot, char* text, size_t text_bytes) {
  const Driver& driver = context->devices.driver();
  auto* from = const_cast<std::byte*>(static_cast<const std::byte*>(slot));
  CUresult result = CUDA_SUCCESS;
  // Work that the caller has already queued, such as the initialisation of the tensors, must not
  // run after the copy.
  for (const auto& [index, device] : context->devices.all()) {
    CurrentContext current(driver, device.context);
    if (result == CUDA_SUCCESS) result = driver.CtxSynchronize();
  }
  if (result != CUDA_SUCCESS) {
    return ReportError(ErrorCode::kIoError, driver.Text("waiting for the device", result), text,
                       text_bytes);
  }
  const std::span all(pieces, count);
  const auto prepared =
      PreparedCopy::Make(context->devices, all, Direction::kToDevice, context->IsPinned(slot, all));
  for (const CopyGroup& group : prepared->groups()) {
    const Device* device = context->devices.Find(group.device_index);
    result = device == nullptr ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS) break;
    CurrentContext current(driver, device->context);
    result = prepared->Enqueue(group, from, Direction::kToDevice);
    if (result != CUDA_SUCCESS) break;
  }
  const CUresult drained = context->devices.Drain();
  if (result == CUDA_SUCCESS) result = drained;
  if (result == CUDA_SUCCESS) return 0;
  return ReportError(ErrorCode::kIoError, driver.Text("copying to the device", result), text,
                     text_bytes);
}

uint64_t GatherBelow(const holdfast_device_context* context) {
  uint64_t least = std::numeric_limits<uint64_t>::max();
  for (const auto& [index, device] : context->devices.all()) {
    least =
        std::min(least, device.gather == nullptr ? 0 : device.gather->below(Direction::kToHost));
  }
  return least;
}

constexpr holdfast_device_copier kTable = {
    HOLDFAST_DEVICE_COPIER_ABI,
    sizeof(holdfast_device_copier),
    Open,
    Close,
    Pin,
    Unpin,
    Mark,
    DropMark,
    Start,
    WaitPieces,
    IsQueued,
    Guard,
    Finish,
    Restore,
    GatherBelow,
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const holdfast_device_copier*
holdfast_device_copier_table(void) {
  return &kTable;
}
