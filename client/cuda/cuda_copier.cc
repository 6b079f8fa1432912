// The device copier over CUDA's driver API, with two non-blocking copy streams per device. An event
// orders every save after the training stream, and the guard makes the training stream wait for the
// last copy's event. Neither blocks the host.

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
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
#include "client/cuda/copy_schedule.h"
#include "client/cuda/driver.h"
#include "client/cuda/engine_copies.h"
#include "client/cuda/gather.h"

using holdfast::ErrorCode;
using holdfast::cuda::CopyGroup;
using holdfast::cuda::CopySchedule;
using holdfast::cuda::Direction;
using holdfast::cuda::Driver;
using holdfast::cuda::Gather;
using holdfast::cuda::GatherItem;

namespace {

int32_t Number(ErrorCode code) { return static_cast<int32_t>(code); }

int32_t ReportError(ErrorCode code, const std::string& message, char* text, size_t text_bytes) {
  if (text != nullptr && text_bytes > 0) std::snprintf(text, text_bytes, "%s", message.c_str());
  return Number(code);
}

/// Makes a context current for a scope, and then restores the caller's. The driver refuses most
/// calls on a thread without a current context, even when an event or a stream implies one. The
/// scope is in the relaxed capture mode: otherwise waiting for an event or pinning memory would end
/// a capture that the program has begun on another thread.
class CurrentContext {
 public:
  CurrentContext(const Driver& driver, CUcontext context) : driver_(driver) {
    relaxed_ = driver_.ExchangeCaptureMode(&capture_mode_) == CUDA_SUCCESS;
    pushed_ = context != nullptr && driver_.CtxPush(context) == CUDA_SUCCESS;
  }
  ~CurrentContext() {
    CUcontext popped = nullptr;
    if (pushed_) driver_.CtxPop(&popped);
    if (relaxed_) driver_.ExchangeCaptureMode(&capture_mode_);
  }
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

 private:
  const Driver& driver_;
  bool pushed_ = false;
  bool relaxed_ = false;
  CUstreamCaptureMode capture_mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

/// Returns whether work queued on `stream` becomes part of a graph, or may: while another stream is
/// captured, the driver does not report the state of the default stream.
bool IsCaptured(const Driver& driver, CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult result = driver.StreamIsCapturing(stream, &status);
  return status != CU_STREAM_CAPTURE_STATUS_NONE || result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

/// A copy is torn if its tensors change during the copy. To detect this, the first bytes of up to
/// kSamplesMax pieces of each device are read a second time after the copy.
constexpr size_t kSamplesMax = 32;
constexpr size_t kSampleBytes = 256;

struct Device {
  CUdevice device = 0;
  CUcontext context = nullptr;
  /// Groups alternate between them, so that the beginning of one hides the end of another.
  std::array<CUstream, holdfast::cuda::kStreamsPerDevice> streams{};
  std::byte* samples = nullptr;    // pinned; used by one copy at a time
  std::unique_ptr<Gather> gather;  // nullptr: copy engines copy everything
};

/// The bytes of a piece that are read twice.
struct Sample {
  const std::byte* first = nullptr;   // in the slot
  const std::byte* second = nullptr;  // among the device's samples
  size_t bytes = 0;
};

/// The schedule of some pieces. The items for the kernel are in the memory of each device.
class Prepared {
 public:
  /// Without `gather`, copy engines copy everything.
  static std::shared_ptr<const Prepared> Make(const Driver& driver,
                                              const std::map<int32_t, Device>& devices,
                                              std::span<const holdfast_device_piece> pieces,
                                              Direction direction, bool gather);
  Prepared(const Driver& driver, const std::map<int32_t, Device>& devices)
      : driver_(driver), devices_(devices) {}
  ~Prepared() {
    for (const auto& [index, items] : items_) {
      CurrentContext current(driver_, devices_.at(index).context);
      driver_.MemFree(items);
    }
  }
  Prepared(const Prepared&) = delete;
  Prepared& operator=(const Prepared&) = delete;

  bool IsFor(std::span<const holdfast_device_piece> pieces, bool gather) const {
    return gather == gather_ && pieces.size_bytes() == pieces_.size() * sizeof pieces_[0] &&
           std::memcmp(pieces.data(), pieces_.data(), pieces.size_bytes()) == 0;
  }
  const std::vector<CopyGroup>& groups() const { return schedule_.groups; }
  /// Enqueues a group on its device's stream. The device's context is current.
  CUresult Enqueue(const CopyGroup& group, std::byte* slot, Direction direction) const;

 private:
  CUresult UploadItems();
  /// Enqueues the kernel for the items of a group.
  CUresult EnqueueItems(const CopyGroup& group, const Device& device, std::byte* slot,
                        Direction direction) const;

  const Driver& driver_;
  const std::map<int32_t, Device>& devices_;
  std::vector<holdfast_device_piece> pieces_;
  bool gather_ = false;
  CopySchedule schedule_;
  std::map<int32_t, CUdeviceptr> items_;
};

bool AreInOneAllocation(const Driver& driver, const Device& device, uint64_t one, uint64_t other) {
  if (driver.GetAddressRange == nullptr) return false;
  CurrentContext current(driver, device.context);
  CUdeviceptr base = 0;
  size_t bytes = 0;
  if (driver.GetAddressRange(&base, &bytes, one) != CUDA_SUCCESS) return false;
  return base <= other && other < base + bytes;
}

std::shared_ptr<const Prepared> Prepared::Make(const Driver& driver,
                                               const std::map<int32_t, Device>& devices,
                                               std::span<const holdfast_device_piece> pieces,
                                               Direction direction, bool gather) {
  auto made = std::make_shared<Prepared>(driver, devices);
  made->pieces_.assign(pieces.begin(), pieces.end());
  made->gather_ = gather;
  uint64_t bytes = 0;
  for (const holdfast_device_piece& piece : pieces) bytes += piece.bytes;
  const auto plan = [&](bool use_kernel) {
    made->schedule_ = holdfast::cuda::MakeSchedule(
        pieces, {.limits = holdfast::cuda::LimitsFor(bytes),
                 .gather_below = [&](int32_t index) -> uint64_t {
                   auto device = devices.find(index);
                   if (!use_kernel || device == devices.end()) return 0;
                   return device->second.gather ? device->second.gather->below(direction) : 0;
                 },
                 .same_allocation =
                     [&](int32_t index, uint64_t one, uint64_t other) {
                       auto device = devices.find(index);
                       return device != devices.end() &&
                              AreInOneAllocation(driver, device->second, one, other);
                     }});
  };
  plan(gather);
  // Without memory for the items, copy engines copy everything.
  if (!made->schedule_.items.empty() && made->UploadItems() != CUDA_SUCCESS) plan(false);
  return made;
}

CUresult Prepared::UploadItems() {
  const size_t bytes = schedule_.items.size() * sizeof(GatherItem);
  for (const auto& [index, device] : devices_) {
    if (device.gather == nullptr) continue;
    CurrentContext current(driver_, device.context);
    CUresult result = driver_.MemAlloc(&items_[index], bytes);
    if (result != CUDA_SUCCESS) {
      items_.erase(index);
      return result;
    }
    result = driver_.CopyToDevice(items_[index], schedule_.items.data(), bytes, device.streams[0]);
    if (result == CUDA_SUCCESS) result = driver_.StreamSynchronize(device.streams[0]);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

CUresult Prepared::EnqueueItems(const CopyGroup& group, const Device& device, std::byte* slot,
                                Direction direction) const {
  const size_t count = group.items_end - group.items_begin;
  if (count == 0) return CUDA_SUCCESS;
  CUdeviceptr on_device = 0;
  const CUresult result = driver_.HostGetDevicePointer(&on_device, slot, 0);
  if (result != CUDA_SUCCESS) return result;
  const CUdeviceptr first = items_.at(group.device_index) + group.items_begin * sizeof(GatherItem);
  return device.gather->Launch(first, count, on_device, direction, device.streams[group.stream]);
}

CUresult Prepared::Enqueue(const CopyGroup& group, std::byte* slot, Direction direction) const {
  const Device& device = devices_.at(group.device_index);
  const CUresult result = EnqueueItems(group, device, slot, direction);
  if (result != CUDA_SUCCESS) return result;
  const auto runs =
      std::span(schedule_.runs).subspan(group.runs_begin, group.runs_end - group.runs_begin);
  const auto enqueue =
      device.gather == nullptr ? holdfast::cuda::EnqueueBatch : holdfast::cuda::EnqueueRuns;
  return enqueue(driver_, runs, slot, direction, device.streams[group.stream]);
}

}  // namespace

struct holdfast_device_context {
  const Driver* driver = nullptr;
  std::map<int32_t, Device> devices;
  /// Of the last save. An unchanged state has the same pieces at every save.
  std::shared_ptr<const Prepared> prepared;
  holdfast::Mutex mutex;
  std::map<void*, uint64_t> pinned HOLDFAST_GUARDED_BY(mutex);  // address → bytes

  CUcontext first() const { return devices.begin()->second.context; }
  /// Returns the context of `stream`. For a default stream, which has one handle for all devices:
  /// the contexts of all devices.
  std::vector<CUcontext> ContextsOf(CUstream stream) const {
    const bool is_default =
        stream == nullptr || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
    CurrentContext current(*driver, first());
    CUcontext context = nullptr;
    if (!is_default && driver->StreamGetCtx(stream, &context) == CUDA_SUCCESS) return {context};
    std::vector<CUcontext> all;
    for (const auto& [index, device] : devices) all.push_back(device.context);
    return all;
  }
  void DestroyEvents(const std::vector<CUevent>& events) const {
    CurrentContext current(*driver, first());
    for (CUevent event : events) driver->EventDestroy(event);
  }
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
  holdfast_device_context* context = nullptr;
  std::shared_ptr<const Prepared> prepared;
  std::vector<CUevent> events;  // one per group, recorded after its copies
  size_t complete = 0;          // groups whose event is known to be complete
  std::vector<CUevent> marks;
  std::vector<Sample> samples;
};

namespace {

int32_t Close(holdfast_device_context* context) {
  const Driver& driver = *context->driver;
  context->prepared = nullptr;
  for (auto& [index, device] : context->devices) {
    CurrentContext current(driver, device.context);
    for (CUstream stream : device.streams) {
      if (stream == nullptr) continue;
      driver.StreamSynchronize(stream);
      driver.StreamDestroy(stream);
    }
    if (device.samples != nullptr) driver.HostFree(device.samples);
    device.gather = nullptr;
  }
  for (auto& [index, device] : context->devices) {
    if (device.context != nullptr) driver.PrimaryCtxRelease(device.device);
  }
  delete context;
  return 0;
}

/// Retains the device's primary context (which the CUDA runtime and torch use too), and creates the
/// copy streams and the memory for samples.
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

int32_t Open(const int32_t* indices, size_t count, holdfast_device_context** context, char* text,
             size_t text_bytes) {
  *context = nullptr;
  std::string why;
  const Driver* driver = Driver::Load(&why);
  if (driver == nullptr) return ReportError(ErrorCode::kUnsupported, why, text, text_bytes);
  auto made = std::make_unique<holdfast_device_context>();
  made->driver = driver;
  for (size_t i = 0; i < count; ++i) {
    CUresult result = OpenDevice(*driver, indices[i], &made->devices[indices[i]]);
    if (result == CUDA_SUCCESS) continue;
    why = driver->Text(("CUDA device " + std::to_string(indices[i])).c_str(), result);
    Close(made.release());
    return ReportError(ErrorCode::kUnsupported, why, text, text_bytes);
  }
  *context = made.release();
  return 0;
}

int32_t Pin(holdfast_device_context* context, void* memory, uint64_t bytes, char* text,
            size_t text_bytes) {
  const Driver& driver = *context->driver;
  CurrentContext current(driver, context->first());
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
  CurrentContext current(*context->driver, context->first());
  context->driver->HostUnregister(memory);
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
  const Driver& driver = *context->driver;
  auto* training_stream = static_cast<CUstream>(stream);
  auto made = std::make_unique<holdfast_device_mark>();
  for (CUcontext one : context->ContextsOf(training_stream)) {
    {
      CurrentContext current(driver, one);
      if (IsCaptured(driver, training_stream)) {
        context->DestroyEvents(made->events);
        return ReportError(
            ErrorCode::kFailedPrecondition,
            "cannot save while a CUDA graph is being captured on this stream: save before or after "
            "the capture",
            text, text_bytes);
      }
    }
    CUresult result = Record(driver, one, training_stream, &made->events);
    if (result == CUDA_SUCCESS) continue;
    context->DestroyEvents(made->events);
    return ReportError(ErrorCode::kIoError, driver.Text("marking the training stream", result),
                       text, text_bytes);
  }
  *mark = made.release();
  return 0;
}

void DropMark(holdfast_device_context* context, holdfast_device_mark* mark) {
  context->DestroyEvents(mark->events);
  delete mark;
}

/// Blocks until no copy runs on any device. Returns the first error.
CUresult Drain(const holdfast_device_context& context) {
  CUresult first = CUDA_SUCCESS;
  for (const auto& [index, device] : context.devices) {
    CurrentContext current(*context.driver, device.context);
    for (CUstream stream : device.streams) {
      CUresult result = context.driver->StreamSynchronize(stream);
      if (first == CUDA_SUCCESS) first = result;
    }
  }
  return first;
}

void Finish(holdfast_device_copy* copy) {
  Drain(*copy->context);
  copy->context->DestroyEvents(copy->events);
  copy->context->DestroyEvents(copy->marks);
  delete copy;
}

/// Enqueues a second read of the beginnings of some of a device's pieces, after all of them are
/// copied.
CUresult EnqueueSamples(holdfast_device_copy* copy, const Device& device, const CopyGroup& last,
                        const holdfast_device_piece* pieces, const std::byte* slot) {
  std::vector<size_t> here;
  for (const CopyGroup& group : copy->prepared->groups()) {
    if (group.device_index != last.device_index) continue;
    for (size_t i = group.begin; i < group.end; ++i) here.push_back(i);
  }
  const size_t count = std::min(here.size(), kSamplesMax);
  for (size_t k = 0; k < count; ++k) {
    const holdfast_device_piece& piece = pieces[here[k * here.size() / count]];
    std::byte* again = device.samples + k * kSampleBytes;
    const size_t bytes = std::min<size_t>(piece.bytes, kSampleBytes);
    CUresult result =
        copy->context->driver->CopyToHost(again, reinterpret_cast<CUdeviceptr>(piece.device_memory),
                                          bytes, device.streams[last.stream]);
    if (result != CUDA_SUCCESS) return result;
    copy->samples.push_back({slot + piece.slot_offset, again, bytes});
  }
  return CUDA_SUCCESS;
}

/// Enqueues all groups after the marks. The event of a device's last group also covers the groups
/// on the device's other stream, and the samples.
CUresult StartGroups(holdfast_device_copy* copy, const holdfast_device_piece* pieces,
                     std::byte* slot) {
  const Driver& driver = *copy->context->driver;
  std::map<int32_t, const CopyGroup*> last;
  std::map<int32_t, std::array<CUevent, holdfast::cuda::kStreamsPerDevice>> latest;
  const std::vector<CopyGroup>& groups = copy->prepared->groups();
  for (const CopyGroup& group : groups) last[group.device_index] = &group;
  for (auto& [index, device] : copy->context->devices) {
    CurrentContext current(driver, device.context);
    for (CUevent mark : copy->marks) {
      for (CUstream stream : device.streams) {
        CUresult result = driver.StreamWaitEvent(stream, mark, 0);
        if (result != CUDA_SUCCESS) return result;
      }
    }
  }
  for (const CopyGroup& group : groups) {
    auto found = copy->context->devices.find(group.device_index);
    if (found == copy->context->devices.end()) return CUDA_ERROR_INVALID_DEVICE;
    const Device& device = found->second;
    CurrentContext current(driver, device.context);
    CUevent event = nullptr;
    CUresult result = driver.EventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC);
    if (result != CUDA_SUCCESS) return result;
    copy->events.push_back(event);
    CUstream stream = device.streams[group.stream];
    result = copy->prepared->Enqueue(group, slot, Direction::kToHost);
    if (result == CUDA_SUCCESS && last[group.device_index] == &group) {
      CUevent other = latest[group.device_index][1 - group.stream];
      if (other != nullptr) result = driver.StreamWaitEvent(stream, other, 0);
      if (result == CUDA_SUCCESS) result = EnqueueSamples(copy, device, group, pieces, slot);
    }
    if (result == CUDA_SUCCESS) result = driver.EventRecord(event, stream);
    if (result != CUDA_SUCCESS) return result;
    latest[group.device_index][group.stream] = event;
  }
  return CUDA_SUCCESS;
}

int32_t Start(holdfast_device_context* context, holdfast_device_mark* mark,
              const holdfast_device_piece* pieces, size_t count, void* slot,
              holdfast_device_copy** copy, char* text, size_t text_bytes) {
  auto made = std::make_unique<holdfast_device_copy>();
  made->context = context;
  made->marks = std::move(mark->events);
  delete mark;
  const std::span all(pieces, count);
  const bool gather = context->IsPinned(slot, all);
  if (context->prepared == nullptr || !context->prepared->IsFor(all, gather)) {
    context->prepared = nullptr;  // first frees the memory of the former items
    context->prepared =
        Prepared::Make(*context->driver, context->devices, all, Direction::kToHost, gather);
  }
  made->prepared = context->prepared;
  CUresult result = StartGroups(made.get(), pieces, static_cast<std::byte*>(slot));
  if (result != CUDA_SUCCESS) {
    // Finish() waits for the copies that were enqueued and still read the tensors.
    Finish(made.release());
    context->prepared = nullptr;  // the allocations may have changed under the same addresses
    return ReportError(ErrorCode::kIoError,
                       context->driver->Text("copying from the device", result), text, text_bytes);
  }
  *copy = made.release();
  return 0;
}

int32_t WaitPieces(holdfast_device_copy* copy, size_t want, size_t* done, char* text,
                   size_t text_bytes) {
  const Driver& driver = *copy->context->driver;
  CurrentContext current(driver, copy->context->first());
  const std::vector<CopyGroup>& groups = copy->prepared->groups();
  if (groups.empty()) {
    *done = want;
    return 0;
  }
  // Earlier groups may be on other devices. All must be complete for `done` to be a prefix.
  while (copy->complete < groups.size() &&
         (copy->complete == 0 || groups[copy->complete - 1].end < want)) {
    CUresult result = driver.EventSynchronize(copy->events[copy->complete]);
    if (result != CUDA_SUCCESS) {
      Drain(*copy->context);  // the other devices' copies still run
      return ReportError(ErrorCode::kIoError, driver.Text("copying from the device", result), text,
                         text_bytes);
    }
    ++copy->complete;
  }
  *done = groups[copy->complete - 1].end;
  if (copy->complete < groups.size()) return 0;
  for (const Sample& sample : copy->samples) {
    if (std::memcmp(sample.first, sample.second, sample.bytes) == 0) continue;
    return ReportError(
        ErrorCode::kDataLoss,
        "tensors changed while they were being copied: call guard() before any work that "
        "changes them, such as the replay of a CUDA graph with the optimizer's step",
        text, text_bytes);
  }
  return 0;
}

int32_t Guard(holdfast_device_copy* copy, void* stream, char* text, size_t text_bytes) {
  const Driver& driver = *copy->context->driver;
  auto* training_stream = static_cast<CUstream>(stream);
  // The last event of each device covers all of its groups.
  std::map<int32_t, CUevent> last;
  const std::vector<CopyGroup>& groups = copy->prepared->groups();
  for (size_t i = 0; i < groups.size(); ++i) last[groups[i].device_index] = copy->events[i];
  for (CUcontext one : copy->context->ContextsOf(training_stream)) {
    CurrentContext current(driver, one);
    // A graph cannot wait for an event that it does not contain, so the host waits.
    const bool captured = IsCaptured(driver, training_stream);
    for (const auto& [index, event] : last) {
      CUresult result = captured ? driver.EventSynchronize(event)
                                 : driver.StreamWaitEvent(training_stream, event, 0);
      if (result == CUDA_SUCCESS) continue;
      return ReportError(ErrorCode::kIoError, driver.Text("guarding the training stream", result),
                         text, text_bytes);
    }
  }
  return 0;
}

int32_t Restore(holdfast_device_context* context, const holdfast_device_piece* pieces, size_t count,
                const void* slot, char* text, size_t text_bytes) {
  const Driver& driver = *context->driver;
  auto* from = const_cast<std::byte*>(static_cast<const std::byte*>(slot));
  CUresult result = CUDA_SUCCESS;
  // Work that the caller has already queued, such as the initialisation of the tensors, must not
  // run after the copy.
  for (auto& [index, device] : context->devices) {
    CurrentContext current(driver, device.context);
    if (result == CUDA_SUCCESS) result = driver.CtxSynchronize();
  }
  if (result != CUDA_SUCCESS) {
    return ReportError(ErrorCode::kIoError, driver.Text("waiting for the device", result), text,
                       text_bytes);
  }
  const std::span all(pieces, count);
  const auto prepared = Prepared::Make(driver, context->devices, all, Direction::kToDevice,
                                       context->IsPinned(slot, all));
  for (const CopyGroup& group : prepared->groups()) {
    auto found = context->devices.find(group.device_index);
    result = found == context->devices.end() ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS) break;
    CurrentContext current(driver, found->second.context);
    result = prepared->Enqueue(group, from, Direction::kToDevice);
    if (result != CUDA_SUCCESS) break;
  }
  const CUresult drained = Drain(*context);
  if (result == CUDA_SUCCESS) result = drained;
  if (result == CUDA_SUCCESS) return 0;
  return ReportError(ErrorCode::kIoError, driver.Text("copying to the device", result), text,
                     text_bytes);
}

uint64_t GatherBelow(const holdfast_device_context* context) {
  uint64_t least = std::numeric_limits<uint64_t>::max();
  for (const auto& [index, device] : context->devices) {
    least =
        std::min(least, device.gather == nullptr ? 0 : device.gather->below(Direction::kToHost));
  }
  return least;
}

constexpr holdfast_device_copier kTable = {
    HOLDFAST_DEVICE_COPIER_ABI,
    sizeof(holdfast_device_copier),
    Open,
    [](holdfast_device_context* context) { Close(context); },
    Pin,
    Unpin,
    Mark,
    DropMark,
    Start,
    WaitPieces,
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
