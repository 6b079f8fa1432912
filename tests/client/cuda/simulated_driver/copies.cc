#include "tests/client/cuda/simulated_driver/copies.h"

#include <cstring>
#include <memory>
#include <utility>

namespace holdfast::cuda::simulated {
namespace {

/// Returns the bytes of an address; null when they have been freed.
std::shared_ptr<std::byte> Resolve(Machine& machine, CUdeviceptr address, size_t bytes) {
  if (machine.memory.IsDevice(address)) return machine.memory.Find(address, bytes);
  return {std::shared_ptr<void>(), reinterpret_cast<std::byte*>(address)};
}

}  // namespace

CUresult RunCopies(const std::vector<Copy>& copies, int device) {
  Machine& machine = Machine::Get();
  for (const Copy& copy : copies) {
    std::unique_lock lock(machine.mutex);
    machine.AwaitPermission(lock, device);
    machine.CopyBegins();
    auto to = Resolve(machine, copy.to, copy.bytes);
    auto from = Resolve(machine, copy.from, copy.bytes);
    if (to == nullptr || from == nullptr || machine.TakeCopyFailure(device)) {
      return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    lock.unlock();
    InParts(copy.bytes,
            [&](size_t at, size_t part) { std::memcpy(to.get() + at, from.get() + at, part); });
  }
  return CUDA_SUCCESS;
}

namespace {
/// Counts queued copies until their operation ends or is dropped, and keeps pinned memory in use.
struct QueuedCopies {
  explicit QueuedCopies(std::vector<Copy> all) : copies(std::move(all)) {
    Machine::Get().CopiesQueued(copies.size());
  }
  ~QueuedCopies() { Machine::Get().CopiesEnded(copies.size()); }
  std::vector<Copy> copies;
  std::vector<std::shared_ptr<Pinned>> pinned;
};

}  // namespace

CUresult QueueCopies(Call& call, Stream& stream, std::vector<Copy> copies) {
  const int device = stream.context->device;
  auto queued = std::make_shared<QueuedCopies>(std::move(copies));
  bool pageable = false;
  for (const Copy& copy : queued->copies) {
    for (CUdeviceptr side : {copy.to, copy.from}) {
      if (call.machine.memory.IsDevice(side)) {
        if (call.machine.memory.Find(side, copy.bytes) == nullptr) return CUDA_ERROR_INVALID_VALUE;
        continue;
      }
      auto pinned =
          call.machine.memory.FindPinned(reinterpret_cast<void*>(side), copy.bytes, device);
      pageable |= pinned == nullptr;
      if (pinned != nullptr) queued->pinned.push_back(std::move(pinned));
    }
  }
  const Point point =
      call.machine.Enqueue(stream, [queued, device] { return RunCopies(queued->copies, device); });
  queued.reset();
  if (pageable && stream.capture == nullptr) call.machine.Await(call.lock, point);
  return CUDA_SUCCESS;
}

}  // namespace holdfast::cuda::simulated
