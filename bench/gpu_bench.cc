// State on a GPU: device → sealed slot and back, compared with one pinned copy of the same bytes,
// and the cost of a checkpoint every step for the training stream.

#include <cuda.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <type_traits>

#include "bench/bench.h"
#include "bench/live_client.h"

namespace holdfast::bench {
namespace {

using std::chrono::seconds;

/// The driver calls that the measurement itself needs, resolved at run time.
struct Driver {
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW);
#define HOLDFAST_DRIVER_FUNCTIONS(X)                                                      \
  X(Init, cuInit, CUresult(unsigned))                                                     \
  X(Retain, cuDevicePrimaryCtxRetain, CUresult(CUcontext*, CUdevice))                     \
  X(Push, cuCtxPushCurrent_v2, CUresult(CUcontext))                                       \
  X(Alloc, cuMemAlloc_v2, CUresult(CUdeviceptr*, size_t))                                 \
  X(Free, cuMemFree_v2, CUresult(CUdeviceptr))                                            \
  X(AllocPinned, cuMemHostAlloc, CUresult(void**, size_t, unsigned))                      \
  X(FreePinned, cuMemFreeHost, CUresult(void*))                                           \
  X(Fill, cuMemsetD8Async, CUresult(CUdeviceptr, unsigned char, size_t, CUstream))        \
  X(ToHost, cuMemcpyDtoHAsync_v2, CUresult(void*, CUdeviceptr, size_t, CUstream))         \
  X(ToDevice, cuMemcpyHtoDAsync_v2, CUresult(CUdeviceptr, const void*, size_t, CUstream)) \
  X(StreamCreate, cuStreamCreate, CUresult(CUstream*, unsigned))                          \
  X(StreamDestroy, cuStreamDestroy_v2, CUresult(CUstream))                                \
  X(Synchronize, cuStreamSynchronize, CUresult(CUstream))                                 \
  X(EventCreate, cuEventCreate, CUresult(CUevent*, unsigned))                             \
  X(EventDestroy, cuEventDestroy_v2, CUresult(CUevent))                                   \
  X(EventRecord, cuEventRecord, CUresult(CUevent, CUstream))                              \
  X(StreamWait, cuStreamWaitEvent, CUresult(CUstream, CUevent, unsigned))
#define X(name, symbol, type) \
  std::add_pointer_t<type> name = library == nullptr ? nullptr : Get<type>(#symbol);
  HOLDFAST_DRIVER_FUNCTIONS(X)
#undef X

  bool complete() const {
#define X(name, symbol, type) &&(name) != nullptr
    return library != nullptr HOLDFAST_DRIVER_FUNCTIONS(X);
#undef X
  }

 private:
  template <typename Function>
  Function* Get(const char* symbol) const {
    return reinterpret_cast<Function*>(::dlsym(library, symbol));
  }
};

Status Check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return Status::Ok();
  return InternalError(fmt::format("{}: CUDA driver error {}", what, static_cast<int>(result)));
}

/// A tensor's place in the memory of a Device.
struct Place {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

/// Device memory with random content, a pinned host buffer of the same size, and a training stream.
class Device {
 public:
  static Result<std::unique_ptr<Device>> Make(const Driver& driver, uint64_t bytes) {
    std::unique_ptr<Device> device(new Device(driver, bytes));
    CUcontext context = nullptr;
    HOLDFAST_RETURN_IF_ERROR(Check(driver.Retain(&context, 0), "cuDevicePrimaryCtxRetain"));
    HOLDFAST_RETURN_IF_ERROR(Check(driver.Push(context), "cuCtxPushCurrent"));
    HOLDFAST_RETURN_IF_ERROR(Check(driver.Alloc(&device->memory_, bytes), "cuMemAlloc"));
    HOLDFAST_RETURN_IF_ERROR(
        Check(driver.AllocPinned(&device->pinned_, bytes, 0), "cuMemHostAlloc"));
    HOLDFAST_RETURN_IF_ERROR(
        Check(driver.StreamCreate(&device->stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate"));
    HOLDFAST_RETURN_IF_ERROR(Check(
        driver.StreamCreate(&device->copy_stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate"));
    for (CUevent* event : {&device->updated_, &device->copied_}) {
      HOLDFAST_RETURN_IF_ERROR(
          Check(driver.EventCreate(event, CU_EVENT_DISABLE_TIMING), "cuEventCreate"));
    }
    device->FillExpected();
    HOLDFAST_RETURN_IF_ERROR(device->Upload());
    return device;
  }
  ~Device() {
    for (CUevent event : {updated_, copied_}) {
      if (event != nullptr) driver_.EventDestroy(event);
    }
    if (copy_stream_ != nullptr) driver_.StreamDestroy(copy_stream_);
    if (stream_ != nullptr) driver_.StreamDestroy(stream_);
    if (pinned_ != nullptr) driver_.FreePinned(pinned_);
    if (memory_ != 0) driver_.Free(memory_);
  }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  /// Fills the expected bytes and the pinned buffer with random bytes, by several threads.
  void FillExpected() {
    constexpr uint64_t kThreads = 8;
    expected_ = std::make_unique_for_overwrite<std::byte[]>(bytes_);
    std::vector<std::thread> threads;
    for (uint64_t i = 0; i < kThreads; ++i) {
      threads.emplace_back([this, i] {
        const uint64_t begin = bytes_ * i / kThreads;
        const uint64_t size = bytes_ * (i + 1) / kThreads - begin;
        FillRandom(expected_.get() + begin, size, i + 1);
        std::memcpy(static_cast<std::byte*>(pinned_) + begin, expected_.get() + begin, size);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  Status Upload() {
    HOLDFAST_RETURN_IF_ERROR(Check(driver_.ToDevice(memory_, pinned_, bytes_, stream_), "upload"));
    return Synchronize();
  }
  Status Download() {
    HOLDFAST_RETURN_IF_ERROR(Check(driver_.ToHost(pinned_, memory_, bytes_, stream_), "download"));
    return Synchronize();
  }
  /// Starts one pinned copy of the state on another stream, after the work on stream().
  Status StartCopy() {
    HOLDFAST_RETURN_IF_ERROR(Check(driver_.EventRecord(updated_, stream_), "cuEventRecord"));
    HOLDFAST_RETURN_IF_ERROR(
        Check(driver_.StreamWait(copy_stream_, updated_, 0), "cuStreamWaitEvent"));
    HOLDFAST_RETURN_IF_ERROR(
        Check(driver_.ToHost(pinned_, memory_, bytes_, copy_stream_), "download"));
    return Check(driver_.EventRecord(copied_, copy_stream_), "cuEventRecord");
  }
  /// Lets stream() wait for the copy that was started last.
  Status AwaitCopy() { return Check(driver_.StreamWait(stream_, copied_, 0), "cuStreamWaitEvent"); }
  Status Fill(uint64_t offset, uint64_t bytes, unsigned char with) {
    return Check(driver_.Fill(memory_ + offset, with, bytes, stream_), "cuMemsetD8Async");
  }
  Status Synchronize() { return Check(driver_.Synchronize(stream_), "cuStreamSynchronize"); }
  /// Returns whether the bytes of all tensors on the device equal the initial ones.
  Result<bool> Unchanged(const std::vector<Place>& tensors) {
    HOLDFAST_RETURN_IF_ERROR(Download());
    return std::ranges::all_of(tensors, [&](const Place& tensor) {
      return std::memcmp(static_cast<std::byte*>(pinned_) + tensor.offset,
                         expected_.get() + tensor.offset, tensor.bytes) == 0;
    });
  }
  void* at(uint64_t offset) const { return reinterpret_cast<void*>(memory_ + offset); }
  CUstream stream() const { return stream_; }

 private:
  Device(const Driver& driver, uint64_t bytes) : driver_(driver), bytes_(bytes) {}
  const Driver& driver_;
  uint64_t bytes_;
  CUdeviceptr memory_ = 0;
  void* pinned_ = nullptr;
  CUstream stream_ = nullptr;
  CUstream copy_stream_ = nullptr;
  CUevent updated_ = nullptr;
  CUevent copied_ = nullptr;
  std::unique_ptr<std::byte[]> expected_;
};

/// Device memory and a stream for the work of a training step.
class Work {
 public:
  static Result<std::unique_ptr<Work>> Make(const Driver& driver, uint64_t bytes) {
    std::unique_ptr<Work> work(new Work(driver, bytes));
    HOLDFAST_RETURN_IF_ERROR(Check(driver.Alloc(&work->memory_, bytes), "cuMemAlloc"));
    HOLDFAST_RETURN_IF_ERROR(
        Check(driver.StreamCreate(&work->stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate"));
    return work;
  }
  ~Work() {
    if (stream_ != nullptr) driver_.StreamDestroy(stream_);
    if (memory_ != 0) driver_.Free(memory_);
  }
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  Status Fill(unsigned char with) {
    return Check(driver_.Fill(memory_, with, bytes_, stream_), "cuMemsetD8Async");
  }
  Status Synchronize() { return Check(driver_.Synchronize(stream_), "cuStreamSynchronize"); }

 private:
  Work(const Driver& driver, uint64_t bytes) : driver_(driver), bytes_(bytes) {}
  const Driver& driver_;
  uint64_t bytes_;
  CUdeviceptr memory_ = 0;
  CUstream stream_ = nullptr;
};

/// Sizes of `count` tensors, log-normal between 4 KiB and 64 MiB with a sum of about `bytes`. All
/// are multiples of 512 bytes, so that no gap is between tensors.
std::vector<uint64_t> SizesOf(uint64_t bytes, uint64_t count) {
  constexpr double kSmallest = 4 << 10;
  constexpr double kLargest = 64 << 20;
  constexpr double kSpread = 1.9;
  std::mt19937_64 random(1);
  std::normal_distribution<double> normal;
  std::vector<double> drawn(count);
  for (double& one : drawn) one = std::exp(kSpread * normal(random));
  double median = static_cast<double>(bytes) / static_cast<double>(count);
  std::vector<uint64_t> sizes(count);
  // The limits change the sum, so the median is corrected until the sum fits.
  for (int round = 0; round < 30; ++round) {
    uint64_t sum = 0;
    for (size_t i = 0; i < count; ++i) {
      const double size = std::clamp(median * drawn[i], kSmallest, kLargest);
      sizes[i] = static_cast<uint64_t>(size) / 512 * 512;
      sum += sizes[i];
    }
    median *= static_cast<double>(bytes) / static_cast<double>(sum);
  }
  return sizes;
}

/// A state: the tensors' places, and the bytes of the memory that they are in.
struct Layout {
  std::string name;
  std::vector<Place> tensors;
  uint64_t span = 0;
};

/// Tensors one after the other, as in one flat buffer.
Layout Adjacent(const std::string& name, const std::vector<uint64_t>& sizes) {
  Layout layout{name, {}, 0};
  for (const uint64_t size : sizes) {
    layout.tensors.push_back({layout.span, size});
    layout.span += size;
  }
  return layout;
}

/// Tensors in segments as PyTorch's allocator makes them: of 2 MiB for tensors of up to 1 MiB, of
/// 20 MiB for those of less than 10 MiB, and one for each larger tensor. A gap is between segments,
/// but no unused end of a segment, since one pinned copy would take it too.
Layout InSegments(const std::string& name, const std::vector<uint64_t>& sizes) {
  constexpr uint64_t kGap = 512;
  std::map<uint64_t, std::vector<std::vector<size_t>>> segments;  // of each size: tensors
  std::map<uint64_t, uint64_t> left;                              // in the last segment
  for (size_t i = 0; i < sizes.size(); ++i) {
    const uint64_t segment = sizes[i] <= 1 << 20 ? 2 << 20 : sizes[i] < 10 << 20 ? 20 << 20 : 0;
    if (segments[segment].empty() || left[segment] < sizes[i]) {
      segments[segment].emplace_back();
      left[segment] = std::max(segment, sizes[i]);
    }
    segments[segment].back().push_back(i);
    left[segment] -= sizes[i];
  }
  Layout layout{name, std::vector<Place>(sizes.size()), 0};
  for (const auto& [size, all] : segments) {
    for (const std::vector<size_t>& segment : all) {
      for (const size_t i : segment) {
        layout.tensors[i] = {layout.span, sizes[i]};
        layout.span += sizes[i];
      }
      layout.span += kGap;
    }
  }
  return layout;
}

std::vector<v1::Tensor> Tensors(const Device& device, const std::vector<Place>& places) {
  std::vector<v1::Tensor> tensors;
  for (const Place& place : places) {
    tensors.push_back({.name = fmt::format("t{}", tensors.size()),
                       .dtype = v1::DType::kU8,
                       .data = device.at(place.offset),
                       .shape = {place.bytes},
                       .device = HOLDFAST_CUDA});
  }
  return tensors;
}

/// What saves the state in a step: nothing, a client, or one pinned copy, which is the least that
/// any way of saving does.
enum class Saving { kNone, kClient, kPinnedCopy };

struct StepRun {
  Work& work;
  Device& state;
  v1::Client& client;
  int rounds = 0;  // of work in a step, on other memory than the state's
  int steps = 0;
};

/// Runs steps and returns the seconds per step. A step works, then updates the state. The state is
/// guarded before the update and saved after it.
Result<double> SecondsPerStep(const StepRun& run, Saving saving, uint64_t first_step = 0) {
  Status status;
  const auto guard = [&] {
    if (saving == Saving::kClient) return FromClient(run.client.Guard(run.state.stream()));
    return saving == Saving::kPinnedCopy ? run.state.AwaitCopy() : Status::Ok();
  };
  const auto save = [&](uint64_t step) {
    if (saving == Saving::kClient) {
      return FromClient(run.client.Save(step, {}, run.state.stream()));
    }
    return saving == Saving::kPinnedCopy ? run.state.StartCopy() : Status::Ok();
  };
  const double elapsed = SecondsOf([&] {
    for (int step = 0; step < run.steps && status.ok(); ++step) {
      for (int pass = 0; pass < run.rounds && status.ok(); ++pass) {
        status = run.work.Fill(static_cast<unsigned char>(pass));
      }
      if (status.ok()) status = guard();
      if (status.ok()) status = run.state.Fill(0, 4096, static_cast<unsigned char>(step));
      if (status.ok()) status = save(first_step + static_cast<uint64_t>(step));
      // A training loop reads its loss once per step.
      if (status.ok()) status = run.work.Synchronize();
      if (status.ok()) status = run.state.Synchronize();
    }
    if (status.ok()) status = guard();
    if (status.ok()) status = run.state.Synchronize();
  });
  HOLDFAST_RETURN_IF_ERROR(status);
  return elapsed / run.steps;
}

/// Returns how often the work must run to take `wanted` seconds. A step that is shorter than its
/// save would measure the save.
Result<int> RoundsOf(Work& work, double wanted) {
  constexpr int kTried = 20;
  Status status;
  const double elapsed = SecondsOf([&] {
    for (int i = 0; i < kTried && status.ok(); ++i) status = work.Fill(1);
    if (status.ok()) status = work.Synchronize();
  });
  HOLDFAST_RETURN_IF_ERROR(status);
  return std::max(1, static_cast<int>(wanted / (elapsed / kTried)) + 1);
}

/// Prints the single measurements, which show outliers.
void ReportSeconds(const std::string& what, const std::vector<double>& measured) {
  std::string text;
  for (double one : measured) text += fmt::format(" {:.1f}", one * 1e3);
  std::fprintf(stderr, "%s, ms:%s\n", what.c_str(), text.c_str());
}

Result<std::vector<BenchResult>> Measure(const Driver& driver, const BenchOptions& options,
                                         const Layout& layout) {
  // The pinned copy takes the gaps too: less than 0.1 %.
  const uint64_t bytes = layout.span;
  HOLDFAST_ASSIGN_OR_RETURN(auto device, Device::Make(driver, bytes));
  const std::string dir = options.dir + "/" + layout.name;
  std::filesystem::create_directories(dir);
  HOLDFAST_ASSIGN_OR_RETURN(
      LiveClient live,
      LiveClient::StartWith(dir, bytes, 1'000'000, Tensors(*device, layout.tensors)));
  HOLDFAST_ASSIGN_OR_RETURN(v1::Client client, live.Open("gpu"));
  std::vector<double> sealed;
  std::vector<double> restored;
  std::vector<double> download;
  std::vector<double> upload;
  uint64_t step = 0;
  const int rounds = options.quick ? 6 : 12;
  for (int round = 0; round < rounds; ++round) {
    Status status;
    ++step;
    const double save_seconds = SecondsOf([&] {
      v1::Status saved = client.Save(step, {}, device->stream());
      if (saved.ok()) saved = client.Wait(step, v1::Tier::kSealed, seconds(60));
      status = FromClient(saved);
    });
    HOLDFAST_RETURN_IF_ERROR(status);
    sealed.push_back(save_seconds);
    download.push_back(SecondsOf([&] { status = device->Download(); }));
    HOLDFAST_RETURN_IF_ERROR(status);
    upload.push_back(SecondsOf([&] { status = device->Upload(); }));
    HOLDFAST_RETURN_IF_ERROR(status);
  }
  HOLDFAST_RETURN_IF_ERROR(FromClient(client.Wait(step, v1::Tier::kMemory, seconds(60))));
  for (int round = 0; round < 4; ++round) {
    HOLDFAST_RETURN_IF_ERROR(device->Fill(0, bytes, 0xEE));
    HOLDFAST_RETURN_IF_ERROR(device->Synchronize());
    Status status;
    restored.push_back(SecondsOf([&] {
      auto back = client.Restore(std::nullopt, seconds(60));
      if (!back.ok()) status = FromClient(back.status());
    }));
    HOLDFAST_RETURN_IF_ERROR(status);
    HOLDFAST_ASSIGN_OR_RETURN(bool unchanged, device->Unchanged(layout.tensors));
    if (!unchanged) return Fail(DataLossError("restored bytes differ from those saved"));
  }
  HOLDFAST_ASSIGN_OR_RETURN(auto work, Work::Make(driver, bytes));
  HOLDFAST_ASSIGN_OR_RETURN(const int work_rounds, RoundsOf(*work, 1.5 * Median(sealed)));
  const StepRun run{.work = *work,
                    .state = *device,
                    .client = client,
                    .rounds = work_rounds,
                    .steps = options.quick ? 5 : 20};
  HOLDFAST_ASSIGN_OR_RETURN(const double plain, SecondsPerStep(run, Saving::kNone));
  HOLDFAST_ASSIGN_OR_RETURN(const double copying, SecondsPerStep(run, Saving::kPinnedCopy));
  HOLDFAST_ASSIGN_OR_RETURN(const double saving, SecondsPerStep(run, Saving::kClient, step + 1));
  const holdfast_stats stats = client.Stats();
  std::fprintf(stderr, "%s: a kernel copies runs of fewer than %llu KiB\n", layout.name.c_str(),
               static_cast<unsigned long long>(stats.gather_below >> 10));
  HOLDFAST_RETURN_IF_ERROR(FromClient(client.Close(seconds(10))));

  ReportSeconds(layout.name + " saves", sealed);
  // The first saves touch and pin the pages of their slots.
  sealed.erase(sealed.begin(), sealed.begin() + 3);
  ReportSeconds(layout.name + " copies to the host", download);
  ReportSeconds(layout.name + " restores", restored);
  ReportSeconds(layout.name + " copies to the device", upload);

  const double gigabytes = static_cast<double>(bytes) / 1e9;
  const std::string size = fmt::format("{} MiB", bytes >> 20);
  return std::vector<BenchResult>{
      {.name = "gpu_seal_" + layout.name,
       .ratio = Median(download) / Median(sealed),
       .ours = gigabytes / Median(sealed),
       .reference = gigabytes / Median(download),
       .unit = "GB/s",
       .goal = ">=0.95",
       .note = size + ", Save → sealed slot with checksums ÷ one pinned copy"},
      {.name = "gpu_restore_" + layout.name,
       .ratio = Median(upload) / Median(restored),
       .ours = gigabytes / Median(restored),
       .reference = gigabytes / Median(upload),
       .unit = "GB/s",
       .goal = ">=0.95",
       .note = size + ", slot → device ÷ one pinned copy"},
      {.name = "gpu_stall_" + layout.name,
       .ratio = saving / copying,
       .ours = saving * 1000,
       .reference = copying * 1000,
       .unit = "ms/step",
       .goal = "<=1.02",
       .note = size + ", a step that only uses the device's memory, with a checkpoint ÷ with one "
                      "pinned copy on another stream"},
      {.name = "gpu_stall_of_pinned_copy_" + layout.name,
       .ratio = copying / plain,
       .ours = copying * 1000,
       .reference = plain * 1000,
       .unit = "ms/step",
       .goal = "",
       .note = size + ", that pinned copy ÷ neither"}};
}

}  // namespace

Result<std::vector<BenchResult>> RunGpu(const BenchOptions& options) {
  Driver driver;
  if (!driver.complete() || driver.Init(0) != CUDA_SUCCESS) {
    std::fprintf(stderr, "gpu: skipped: this machine has no CUDA driver or no device\n");
    return std::vector<BenchResult>{};
  }
  const uint64_t usual = options.quick ? 1ULL << 30 : 8ULL << 30;
  const uint64_t bytes = options.bytes != 0 ? options.bytes : usual;
  std::vector<BenchResult> all;
  const std::vector<uint64_t> many = SizesOf(bytes, 10'000);
  for (const Layout& layout :
       {InSegments("10000_tensors", many), Adjacent("10000_tensors_in_one_buffer", many),
        Adjacent("one_tensor", {bytes})}) {
    HOLDFAST_ASSIGN_OR_RETURN(auto results, Measure(driver, options, layout));
    all.insert(all.end(), results.begin(), results.end());
  }
  return all;
}

}  // namespace holdfast::bench
