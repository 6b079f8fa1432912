#include "client/cuda/gather.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <mutex>

#include "client/cuda/gather_item.h"
#include "client/cuda/gather_limit.h"

#ifdef HOLDFAST_GATHER_IMAGE
// The compiled kernel, as nvcc wrote it.
__asm__(
    ".pushsection .rodata\n"
    ".balign 64\n"
    "holdfast_gather_image:\n"
    ".incbin \"" HOLDFAST_GATHER_IMAGE
    "\"\n"
    ".popsection\n");
extern "C" const char holdfast_gather_image[] __attribute__((visibility("hidden")));
#endif

namespace holdfast::cuda {
namespace {
constexpr unsigned kThreadsPerBlock = 512;
constexpr unsigned kWarpsPerBlock = kThreadsPerBlock / 32;
/// The multiprocessors that the kernel uses at most. 8 reach the rate of PCIe 5.
constexpr unsigned kBlocksMax = 8;
constexpr uint64_t kScratchBytes = 16 << 20;
constexpr uint64_t kRunsMax = 1024;
constexpr uint64_t kRunBytes[] = {4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20};
constexpr int kRounds = 3;

const void* GatherImage() {
#ifdef HOLDFAST_GATHER_IMAGE
  return holdfast_gather_image;
#else
  return nullptr;
#endif
}

/// Device memory and registered memory for the measurement. A kernel reads registered memory of
/// small pages, as that of a slot, more slowly than memory of the driver.
class Scratch {
 public:
  explicit Scratch(const Driver& driver) : driver_(driver) {}
  ~Scratch() {
    if (items != 0) driver_.MemFree(items);
    if (device != 0) driver_.MemFree(device);
    if (registered_) driver_.HostUnregister(host);
    if (host != MAP_FAILED) ::munmap(host, kScratchBytes);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  CUresult Allocate() {
    CUresult result = driver_.MemAlloc(&device, kScratchBytes);
    if (result == CUDA_SUCCESS) {
      result = driver_.MemAlloc(&items, kScratchBytes / kGatherItemBytesMax * sizeof(GatherItem));
    }
    if (result != CUDA_SUCCESS) return result;
    host =
        ::mmap(nullptr, kScratchBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (host == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    result = driver_.HostRegister(host, kScratchBytes,
                                  CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
    registered_ = result == CUDA_SUCCESS;
    return result;
  }
  std::byte* slot() const { return static_cast<std::byte*>(host); }

  CUdeviceptr device = 0;
  CUdeviceptr items = 0;
  void* host = MAP_FAILED;

 private:
  const Driver& driver_;
  bool registered_ = false;
};

/// Runs of one size that are not contiguous on both sides.
CopySchedule Scattered(CUdeviceptr device, uint64_t run_bytes, bool gather) {
  std::vector<holdfast_device_piece> pieces;
  const uint64_t count = std::min(kScratchBytes / run_bytes, kRunsMax);
  for (uint64_t i = 0; i < count; ++i) {
    pieces.push_back({reinterpret_cast<void*>(device + (count - 1 - i) * run_bytes), i * run_bytes,
                      run_bytes, 0, 0});
  }
  const uint64_t below = gather ? std::numeric_limits<uint64_t>::max() : 0;
  return MakeSchedule(pieces,
                      {.limits = {kScratchBytes, pieces.size(), pieces.size(), 0},
                       .gather_below = [&](int32_t) { return below; },
                       .same_allocation = [](int32_t, uint64_t, uint64_t) { return true; }});
}

/// Returns the least seconds of several rounds of `enqueue`; after an error, `result` is set.
template <typename Enqueue>
double SecondsOf(const Driver& driver, CUstream stream, Enqueue enqueue, CUresult* result) {
  using Clock = std::chrono::steady_clock;
  double least = std::numeric_limits<double>::infinity();
  for (int round = 0; round <= kRounds && *result == CUDA_SUCCESS; ++round) {
    const Clock::time_point begin = Clock::now();
    *result = enqueue();
    if (*result == CUDA_SUCCESS) *result = driver.StreamSynchronize(stream);
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    if (round > 0) least = std::min(least, seconds);  // the first one loads code
  }
  return least;
}

/// The limits of each device, measured once per process.
struct Measured {
  std::mutex mutex;
  std::map<CUdevice, GatherLimits> limits;
};
Measured& AllMeasured() {
  static Measured measured;
  return measured;
}

}  // namespace

std::unique_ptr<Gather> Gather::Load(const Driver& driver, CUdevice device, CUstream stream) {
  if (GatherImage() == nullptr || !driver.has_kernels()) return nullptr;
  std::unique_ptr<Gather> made(new Gather(driver));
  if (driver.ModuleLoadData(&made->module_, GatherImage()) != CUDA_SUCCESS) return nullptr;
  if (driver.ModuleGetFunction(&made->function_, made->module_, "holdfast_gather") !=
      CUDA_SUCCESS) {
    return nullptr;
  }
  Measured& measured = AllMeasured();
  std::lock_guard lock(measured.mutex);
  auto known = measured.limits.find(device);
  if (known != measured.limits.end()) {
    made->limits_ = known->second;
  } else {
    if (made->Measure(stream) != CUDA_SUCCESS) return nullptr;
    measured.limits[device] = made->limits_;
  }
  if (made->limits_.to_host == 0 && made->limits_.to_device == 0) return nullptr;
  return made;
}

Gather::~Gather() {
  if (module_ != nullptr) driver_.ModuleUnload(module_);
}

CUresult Gather::Measure(CUstream stream) {
  Scratch scratch(driver_);
  CUresult result = scratch.Allocate();
  CUdeviceptr on_device = 0;
  if (result == CUDA_SUCCESS) result = driver_.HostGetDevicePointer(&on_device, scratch.host, 0);
  std::vector<GatherTimes> times[2];
  for (uint64_t run_bytes : kRunBytes) {
    if (result != CUDA_SUCCESS) return result;
    const CopySchedule engine = Scattered(scratch.device, run_bytes, false);
    const CopySchedule kernel = Scattered(scratch.device, run_bytes, true);
    // At most kRunsMax items: as many of the largest as fit into the scratch memory.
    result = driver_.CopyToDevice(scratch.items, kernel.items.data(),
                                  kernel.items.size() * sizeof(GatherItem), stream);
    for (Direction direction : {Direction::kToHost, Direction::kToDevice}) {
      const auto copy = [&] {
        return EnqueueRuns(driver_, engine.runs, scratch.slot(), direction, stream);
      };
      const auto gather = [&] {
        return Launch(scratch.items, kernel.items.size(), on_device, direction, stream);
      };
      times[direction == Direction::kToHost ? 0 : 1].push_back(
          {run_bytes, SecondsOf(driver_, stream, copy, &result),
           SecondsOf(driver_, stream, gather, &result)});
    }
  }
  limits_ = {.to_host = GatherLimit(times[0]), .to_device = GatherLimit(times[1])};
  return result;
}

CUresult Gather::Launch(CUdeviceptr items, size_t count, CUdeviceptr slot, Direction direction,
                        CUstream stream) const {
  auto number = static_cast<unsigned>(count);
  int to_host = direction == Direction::kToHost ? 1 : 0;
  auto blocks = static_cast<unsigned>(
      std::min<size_t>((count + kWarpsPerBlock - 1) / kWarpsPerBlock, kBlocksMax));
  void* arguments[] = {&items, &number, &slot, &to_host};
  return driver_.LaunchKernel(function_, blocks, 1, 1, kThreadsPerBlock, 1, 1, 0, stream, arguments,
                              nullptr);
}

}  // namespace holdfast::cuda
