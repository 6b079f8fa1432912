#include "agent/telemetry/gpu_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <thread>

#include "agent/telemetry/nvml.h"
#include "base/log.h"
#include "base/mutex.h"

namespace holdfast::agent {
namespace {
using Time = std::chrono::steady_clock;  // CLOCK_MONOTONIC
using std::chrono::milliseconds;

constexpr unsigned int kDevicesMax = 64;
constexpr unsigned int kWaitMs = 500;
constexpr milliseconds kPause(1000);  // after an error, and in a flood of events
constexpr milliseconds kLeaveAfter(1500);
constexpr int kEventsInARow = 64;
constexpr size_t kKept = 64;
constexpr size_t kCountsMax = 512;
constexpr unsigned long long kXidMax = 0xFFFF;
/// A repeated error of the same GPU within this time is counted, but not reported again.
constexpr std::chrono::seconds kSameError(1);

/// Returns the bus ID, or an empty text if it has other characters than hexadecimal digits, colons
/// and dots.
std::string BusIdOf(const NvmlPciInfo& info) {
  std::string text(info.bus_id, ::strnlen(info.bus_id, sizeof info.bus_id));
  const bool sane = text.find_first_not_of("0123456789abcdefABCDEF:.") == std::string::npos;
  return sane ? text : "";
}
}  // namespace

class GpuWatch::Waiter {
 public:
  void Run(const std::string& library, milliseconds retry_interval) {
    std::string logged;
    while (!Stopping()) {
      auto nvml = LoadNvml(library);
      const Status watched = nvml ? Watch(*nvml) : nvml.error();
      if (watched.ok()) break;
      if (watched.message() != logged) {
        logged = watched.message();
        Log(LogLevel::kInfo, "GpuErrorsNotWatched", {Kv("why", logged)});
      }
      // A loaded library stays loaded, so only a restarted agent could load another release.
      if (watched.code() == ErrorCode::kUnsupported) break;
      Pause(retry_interval);
    }
    MutexLock lock(mutex_);
    ended_ = true;
    changed_.NotifyAll();
  }

  void Stop() {
    const auto until = Time::now() + kLeaveAfter;
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
    while (!ended_ && changed_.WaitUntil(mutex_, until)) {
    }
  }

  std::vector<GpuError> After(uint64_t number) const {
    MutexLock lock(mutex_);
    std::vector<GpuError> errors;
    for (const GpuError& error : errors_) {
      if (error.number > number) errors.push_back(error);
    }
    return errors;
  }

  std::map<std::pair<uint32_t, uint32_t>, uint64_t> counts() const {
    MutexLock lock(mutex_);
    return counts_;
  }

 private:
  struct Device {
    NvmlDevice handle = nullptr;
    uint32_t index = 0;
    std::string bus_id;
  };

  /// Waits for errors until Stop(). Returns an error when no GPU can be watched.
  Status Watch(const Nvml& nvml) {
    int result = nvml.Init();
    if (result != kNvmlSuccess) return UnavailableError(nvml.ErrorText(result));
    Status status = Register(nvml);
    if (status.ok()) {
      Log(LogLevel::kInfo, "GpuErrorsWatched", {Kv("devices", devices_.size())});
      while (!Stopping()) WaitOnce(nvml);
    }
    if (set_ != nullptr) nvml.EventSetFree(set_);
    set_ = nullptr;
    devices_.clear();
    nvml.Shutdown();
    return status;
  }

  Status Register(const Nvml& nvml) {
    unsigned int count = 0;
    int result = nvml.DeviceGetCount(&count);
    if (result != kNvmlSuccess) return UnavailableError(nvml.ErrorText(result));
    result = nvml.EventSetCreate(&set_);
    if (result != kNvmlSuccess) {
      set_ = nullptr;
      return UnavailableError(nvml.ErrorText(result));
    }
    std::string why = "the driver has no device";
    for (unsigned int i = 0; i < std::min(count, kDevicesMax); ++i) {
      Device device;
      device.index = i;
      result = nvml.DeviceGetHandleByIndex(i, &device.handle);
      if (result == kNvmlSuccess) {
        result = nvml.DeviceRegisterEvents(device.handle, kNvmlXidEvent, set_);
      }
      if (result != kNvmlSuccess) {
        why = fmt::format("device {}: {}", i, nvml.ErrorText(result));
        continue;
      }
      NvmlPciInfo info{};
      if (nvml.DeviceGetPciInfo(device.handle, &info) == kNvmlSuccess) {
        device.bus_id = BusIdOf(info);
      }
      devices_.push_back(std::move(device));
    }
    return devices_.empty() ? UnavailableError(why) : Status::Ok();
  }

  void WaitOnce(const Nvml& nvml) {
    NvmlEvent event{};
    const auto before = Time::now();
    const int result = nvml.EventSetWait(set_, &event, kWaitMs);
    if (result == kNvmlSuccess) {
      Note(event);
      // A driver that reports errors without end must not occupy a core of this process.
      if (++in_a_row_ % kEventsInARow == 0) Pause(kPause);
      return;
    }
    in_a_row_ = 0;
    if (result == kNvmlTimeout) {
      if (Time::now() - before < milliseconds(kWaitMs / 2)) Pause(milliseconds(kWaitMs));
      return;
    }
    // Other GPUs may still report errors, so continue.
    if (result != last_error_) {
      last_error_ = result;
      Log(LogLevel::kWarn, "GpuErrorsNotReported", {Kv("why", nvml.ErrorText(result))});
    }
    Pause(kPause);
  }

  void Note(const NvmlEvent& event) {
    if ((event.type & kNvmlXidEvent) == 0 || event.data == 0 || event.data > kXidMax) return;
    GpuError error;
    for (const Device& device : devices_) {
      if (device.handle != event.device) continue;
      error.device = device.index;
      error.bus_id = device.bus_id;
    }
    error.xid = static_cast<uint32_t>(event.data);
    const auto now = Time::now();
    error.seen_ns = static_cast<uint64_t>(std::chrono::nanoseconds(now.time_since_epoch()).count());
    const std::pair<uint32_t, uint32_t> kind{error.device, error.xid};
    MutexLock lock(mutex_);
    if (counts_.count(kind) == 0 && counts_.size() >= kCountsMax) return;
    const bool again = counts_[kind]++ != 0 && now - last_[kind] < kSameError;
    if (again) return;
    last_[kind] = now;
    error.number = ++number_;
    Log(LogLevel::kWarn, "GpuError",
        {Kv("xid", error.xid), Kv("device", error.device), Kv("bus_id", error.bus_id)});
    errors_.push_back(std::move(error));
    if (errors_.size() > kKept) errors_.pop_front();
  }

  bool Stopping() const {
    MutexLock lock(mutex_);
    return stopping_;
  }

  void Pause(milliseconds time) {
    const auto until = Time::now() + time;
    MutexLock lock(mutex_);
    while (!stopping_ && changed_.WaitUntil(mutex_, until)) {
    }
  }

  // For the thread only.
  NvmlEventSet set_ = nullptr;
  std::vector<Device> devices_;
  int in_a_row_ = 0;
  int last_error_ = kNvmlSuccess;

  mutable Mutex mutex_;
  CondVar changed_;
  bool stopping_ HOLDFAST_GUARDED_BY(mutex_) = false;
  bool ended_ HOLDFAST_GUARDED_BY(mutex_) = false;
  uint64_t number_ HOLDFAST_GUARDED_BY(mutex_) = 0;
  std::deque<GpuError> errors_ HOLDFAST_GUARDED_BY(mutex_);
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> counts_ HOLDFAST_GUARDED_BY(mutex_);
  std::map<std::pair<uint32_t, uint32_t>, Time::time_point> last_ HOLDFAST_GUARDED_BY(mutex_);
};

GpuWatch::GpuWatch(std::string library, milliseconds retry_interval) {
  if (library.empty()) return;
  waiter_ = std::make_shared<Waiter>();
  std::thread([waiter = waiter_, library = std::move(library), retry_interval] {
    waiter->Run(library, retry_interval);
  }).detach();
}

GpuWatch::~GpuWatch() {
  if (waiter_ != nullptr) waiter_->Stop();
}

std::vector<GpuError> GpuWatch::After(uint64_t number) const {
  return waiter_ == nullptr ? std::vector<GpuError>() : waiter_->After(number);
}

std::map<std::pair<uint32_t, uint32_t>, uint64_t> GpuWatch::counts() const {
  return waiter_ == nullptr ? std::map<std::pair<uint32_t, uint32_t>, uint64_t>()
                            : waiter_->counts();
}

}  // namespace holdfast::agent
