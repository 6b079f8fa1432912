#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace holdfast::agent {

inline constexpr uint32_t kGpuUnknown = ~0U;

/// An Xid: an error of a GPU, as the NVIDIA driver reports it.
struct GpuError {
  uint64_t number = 0;            // sequence number in this watch, from 1
  uint32_t device = kGpuUnknown;  // the driver's index of the GPU on this node
  std::string bus_id;             // PCI, "00000000:C6:00.0"; empty: unknown
  uint32_t xid = 0;
  uint64_t seen_ns = 0;  // CLOCK_MONOTONIC
};

/// Waits for errors of the node's GPUs. Without a driver, logs the reason once and retries
/// periodically, since a driver may be installed or loaded later. A separate thread calls the
/// driver, and no other thread waits for that thread: with a failed GPU any function of the driver
/// may take minutes or never return. The driver's data is validated and bounded. Thread-safe.
class GpuWatch {
 public:
  /// `library` is the name or path of NVML, as for dlopen(); empty: the watch is off.
  explicit GpuWatch(std::string library,
                    std::chrono::milliseconds retry_interval = std::chrono::minutes(1));
  /// Waits up to 1.5 s for the thread. A thread that hangs in the driver is abandoned.
  ~GpuWatch();
  GpuWatch(const GpuWatch&) = delete;
  GpuWatch& operator=(const GpuWatch&) = delete;

  /// Returns the errors after the one with this number, oldest first. Only the newest 64 are kept.
  std::vector<GpuError> After(uint64_t number) const;
  /// Returns the number of errors by device and Xid.
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> counts() const;

 private:
  class Waiter;
  std::shared_ptr<Waiter> waiter_;  // shared with its thread, which may outlive this
};

}  // namespace holdfast::agent
