#pragma once

#include <cuda.h>

#include <cstdint>

namespace holdfast::cuda::simulated {

/// The objects that exist now on all devices, and a count of misuse that a driver does not report.
struct Counts {
  uint64_t contexts = 0;
  uint64_t streams = 0;  // created by callers
  uint64_t events = 0;
  uint64_t allocations = 0;
  uint64_t registrations = 0;  // of host memory, cuMemHostAlloc's included
  uint64_t copies_queued = 0;  // not ended yet; a batch counts as its number of pieces
  uint64_t copies_begun = 0;   // since the process began
  /// Host memory unregistered with copies queued, a stream destroyed with work queued, a context
  /// released with streams, events or memory left.
  uint64_t misuses = 0;
};

/// The tests' interface to the simulation, in addition to the driver's functions. Thread-safe.
struct Control {
  Counts (*counts)();
  /// Makes the n-th call of `function` (as exported, "cuEventRecord") from now on do nothing and
  /// return `result`; 1 is the next call.
  void (*fail_call)(const char* function, uint64_t n, CUresult result);
  /// Makes the n-th copy that begins on `device` from now on break its context instead.
  void (*fail_copy)(int device, uint64_t n);
  /// Makes the n-th copy that begins on `device` from now on, and all later ones, wait until
  /// release_copies().
  void (*hold_copy)(int device, uint64_t n);
  void (*release_copies)();
  /// Cancels the effects of fail_call(), fail_copy() and hold_copy().
  void (*fail_nothing)();
};

/// The simulation exports a function of this type under this name; a real driver has none.
using ControlFunction = const Control*();
inline constexpr char kControlSymbol[] = "holdfast_simulated_driver_control";

}  // namespace holdfast::cuda::simulated
