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
  uint64_t number = 0;            // counts those of this watch, from 1
  uint32_t device = kGpuUnknown;  // the driver's index of it on this node
  std::string bus_id;             // PCI, "00000000:C6:00.0"; empty: not known
  uint32_t xid = 0;
  uint64_t seen_ns = 0;  // CLOCK_MONOTONIC
};

/// Waits for errors of the node's GPUs where there is a driver. Where there is none it looks again
/// from time to time, since one may be installed or loaded later; why nothing is watched is logged
/// once. The driver is called from a thread of its own and nothing else
/// waits for it: with a GPU that has failed, any of its functions may take minutes or not return.
/// What it says is checked and bounded. Thread-safe.
class GpuWatch {
 public:
  /// `library`: where NVML is, as for dlopen; empty: nothing is watched.
  explicit GpuWatch(std::string library,
                    std::chrono::milliseconds look_again = std::chrono::minutes(1));
  /// Waits a moment for the driver; a thread that hangs in it is left behind.
  ~GpuWatch();
  GpuWatch(const GpuWatch&) = delete;
  GpuWatch& operator=(const GpuWatch&) = delete;

  /// The errors after the one of this number, oldest first; of very many the newest.
  std::vector<GpuError> After(uint64_t number) const;
  /// How often, by device and Xid.
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> counts() const;

 private:
  class Waiter;
  std::shared_ptr<Waiter> waiter_;  // shared with its thread, which may outlive this
};

}  // namespace holdfast::agent
