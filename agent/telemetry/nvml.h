#pragma once

#include <cstddef>
#include <string>

#include "base/status.h"

// The functions of NVIDIA's management library (libnvidia-ml.so.1, part of the driver) that report
// errors of GPUs. The build needs neither its header nor the library: the declarations follow the
// stable interface in https://docs.nvidia.com/deploy/nvml-api/.

namespace holdfast::agent {

using NvmlDevice = void*;
using NvmlEventSet = void*;

// nvmlReturn_t
inline constexpr int kNvmlSuccess = 0;
inline constexpr int kNvmlTimeout = 10;

inline constexpr unsigned long long kNvmlXidEvent = 0x8;  // nvmlEventTypeXidCriticalError

/// nvmlEventData_t, as nvmlEventSetWait_v2 fills it.
struct NvmlEvent {
  NvmlDevice device;
  unsigned long long type;
  unsigned long long data;  // of an Xid event: its number; 999: unknown
  unsigned int gpu_instance;
  unsigned int compute_instance;
};
static_assert(sizeof(NvmlEvent) == 32 && offsetof(NvmlEvent, data) == 16);

/// nvmlPciInfo_t, with spare space for later releases that write more.
struct NvmlPciInfo {
  char legacy_bus_id[16];
  unsigned int domain;
  unsigned int bus;
  unsigned int device;
  unsigned int ids[2];
  char bus_id[32];
  char room[256];
};
static_assert(offsetof(NvmlPciInfo, bus_id) == 36);

struct Nvml {
  int (*Init)() = nullptr;
  int (*Shutdown)() = nullptr;
  const char* (*ErrorString)(int result) = nullptr;
  int (*DeviceGetCount)(unsigned int* count) = nullptr;
  int (*DeviceGetHandleByIndex)(unsigned int index, NvmlDevice* device) = nullptr;
  int (*DeviceGetPciInfo)(NvmlDevice device, NvmlPciInfo* info) = nullptr;
  int (*EventSetCreate)(NvmlEventSet* set) = nullptr;
  int (*EventSetFree)(NvmlEventSet set) = nullptr;
  int (*DeviceRegisterEvents)(NvmlDevice device, unsigned long long types,
                              NvmlEventSet set) = nullptr;
  int (*EventSetWait)(NvmlEventSet set, NvmlEvent* event, unsigned int timeout_ms) = nullptr;

  /// Returns the library's text for a result, with the number.
  std::string ErrorText(int result) const;
};

/// Loads NVML; `library` is a name or a path, as for dlopen(). NotFound: there is no such library.
/// Unsupported: it lacks a function. The library is never unloaded, because a driver's threads may
/// still run.
Result<Nvml> LoadNvml(const std::string& library);

}  // namespace holdfast::agent
