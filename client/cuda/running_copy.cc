#include "client/cuda/running_copy.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace holdfast::cuda {
namespace {
/// The groups of one device that are queued at a time: two for each stream, so that none is empty
/// while the host queues the next one. A copy engine works on one stream until that stream is empty
/// for a moment, so more groups would also be copied far out of order.
constexpr size_t kGroupsQueued = 2 * kStreamsPerDevice;
/// More groups are queued while all of them are within these limits.
constexpr uint64_t kBytesQueued = 64 << 20;
constexpr size_t kOperationsQueued = 64;
}  // namespace

RunningCopy::RunningCopy(const Devices& devices, std::shared_ptr<const PreparedCopy> prepared,
                         std::vector<CUevent> marks, std::span<const holdfast_device_piece> pieces,
                         std::byte* slot)
    : devices_(devices),
      prepared_(std::move(prepared)),
      marks_(std::move(marks)),
      pieces_(pieces),
      slot_(slot),
      events_(prepared_->groups().size()) {
  for (size_t i = 0; i < events_.size(); ++i) {
    queues_[prepared_->groups()[i].device_index].groups.push_back(i);
  }
}

RunningCopy::~RunningCopy() {
  devices_.Drain();
  std::erase(events_, nullptr);
  devices_.DestroyEvents(events_);
  devices_.DestroyEvents(marks_);
}

CUresult RunningCopy::Start() {
  for (const auto& [index, device] : devices_.all()) {
    CurrentContext current(devices_.driver(), device.context);
    for (CUevent mark : marks_) {
      for (CUstream stream : device.streams) {
        const CUresult result = devices_.driver().StreamWaitEvent(stream, mark, 0);
        if (result != CUDA_SUCCESS) return result;
      }
    }
  }
  return Fill();
}

CUresult RunningCopy::Fill() {
  for (auto& [index, queue] : queues_) {
    const CUresult result = FillQueue(index, queue);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

CUresult RunningCopy::FillQueue(int32_t device_index, Queue& queue) {
  if (queue.next == queue.groups.size()) return CUDA_SUCCESS;
  const Device* device = devices_.Find(device_index);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  CurrentContext current(devices_.driver(), device->context);
  while (queue.oldest < queue.next) {
    const CUresult ended = devices_.driver().EventQuery(events_[queue.groups[queue.oldest]]);
    if (ended == CUDA_ERROR_NOT_READY) break;
    if (ended != CUDA_SUCCESS) return ended;
    const CopyGroup& group = prepared_->groups()[queue.groups[queue.oldest]];
    queue.bytes -= group.bytes;
    queue.operations -= group.operations();
    ++queue.oldest;
  }
  while (queue.next < queue.groups.size()) {
    const CopyGroup& next = prepared_->groups()[queue.groups[queue.next]];
    if (queue.next - queue.oldest >= kGroupsQueued &&
        (queue.bytes + next.bytes > kBytesQueued ||
         queue.operations + next.operations() > kOperationsQueued)) {
      break;
    }
    const CUresult result = EnqueueGroup(*device, queue.groups[queue.next], queue);
    if (result != CUDA_SUCCESS) return result;
    queue.bytes += next.bytes;
    queue.operations += next.operations();
  }
  return CUDA_SUCCESS;
}

CUresult RunningCopy::EnqueueGroup(const Device& device, size_t group, Queue& queue) {
  const Driver& driver = devices_.driver();
  CUevent event = nullptr;
  CUresult result = driver.EventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC);
  if (result != CUDA_SUCCESS) return result;
  events_[group] = event;
  const CopyGroup& copies = prepared_->groups()[group];
  CUstream stream = device.streams[copies.stream];
  result = prepared_->Enqueue(copies, slot_, Direction::kToHost);
  // The event of a device's last group also covers the groups on the device's other stream, and
  // the samples.
  if (result == CUDA_SUCCESS && queue.next + 1 == queue.groups.size()) {
    CUevent other = queue.latest[1 - copies.stream];
    if (other != nullptr) result = driver.StreamWaitEvent(stream, other, 0);
    if (result == CUDA_SUCCESS) result = EnqueueSamples(device, queue, stream);
  }
  if (result == CUDA_SUCCESS) result = driver.EventRecord(event, stream);
  if (result != CUDA_SUCCESS) return result;
  queue.latest[copies.stream] = event;
  ++queue.next;
  ++queued_;
  return CUDA_SUCCESS;
}

CUresult RunningCopy::EnqueueSamples(const Device& device, const Queue& queue, CUstream stream) {
  std::vector<size_t> here;
  for (const size_t group : queue.groups) {
    const CopyGroup& copies = prepared_->groups()[group];
    for (size_t i = copies.begin; i < copies.end; ++i) here.push_back(i);
  }
  const size_t count = std::min(here.size(), kSamplesMax);
  for (size_t k = 0; k < count; ++k) {
    const holdfast_device_piece& piece = pieces_[here[k * here.size() / count]];
    std::byte* again = device.samples + k * kSampleBytes;
    const size_t bytes = std::min<size_t>(piece.bytes, kSampleBytes);
    const CUresult result = devices_.driver().CopyToHost(
        again, reinterpret_cast<CUdeviceptr>(piece.device_memory), bytes, stream);
    if (result != CUDA_SUCCESS) return result;
    samples_.push_back({slot_ + piece.slot_offset, again, bytes});
  }
  return CUDA_SUCCESS;
}

Status RunningCopy::Wait(size_t wanted, size_t* done) {
  const std::vector<CopyGroup>& groups = prepared_->groups();
  if (groups.empty()) {
    *done = wanted;
    return Status::Ok();
  }
  // Earlier groups may be on other devices. All must be complete for `done` to be a prefix.
  while (complete_ < groups.size() && (complete_ == 0 || groups[complete_ - 1].end < wanted)) {
    if (failure_ == CUDA_SUCCESS) {
      CurrentContext current(devices_.driver(), devices_.first());
      failure_ = devices_.driver().EventSynchronize(events_[complete_]);
    }
    if (failure_ == CUDA_SUCCESS) failure_ = Fill();
    if (failure_ != CUDA_SUCCESS) {
      devices_.Drain();  // the other copies still run
      return Status(ErrorCode::kIoError,
                    devices_.driver().Text("copying from the device", failure_));
    }
    ++complete_;
  }
  *done = groups[complete_ - 1].end;
  return complete_ == groups.size() ? CheckSamples() : Status::Ok();
}

Status RunningCopy::CheckSamples() const {
  const bool same = std::ranges::all_of(samples_, [](const Sample& sample) {
    return std::memcmp(sample.first, sample.second, sample.bytes) == 0;
  });
  if (same) return Status::Ok();
  return DataLossError(
      "tensors changed while they were being copied: call guard() before any work that changes "
      "them, such as the replay of a CUDA graph with the optimizer's step");
}

CUresult RunningCopy::Guard(CUstream stream) const {
  const Driver& driver = devices_.driver();
  for (CUcontext context : devices_.ContextsOf(stream)) {
    CurrentContext current(driver, context);
    // A graph cannot wait for an event that it does not contain, so the host waits.
    const bool captured = IsCaptured(driver, stream);
    for (const auto& [index, queue] : queues_) {
      for (CUevent event : queue.latest) {
        if (event == nullptr) continue;
        const CUresult result =
            captured ? driver.EventSynchronize(event) : driver.StreamWaitEvent(stream, event, 0);
        if (result != CUDA_SUCCESS) return result;
      }
    }
  }
  return CUDA_SUCCESS;
}

}  // namespace holdfast::cuda
