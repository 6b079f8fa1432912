#pragma once

#include <cuda.h>

#include <cstdint>

namespace holdfast::cuda::simulated {

/// What is alive now over all devices, and what a caller did that the driver forgives or punishes
/// without a word.
struct Counts {
  uint64_t contexts = 0;
  uint64_t streams = 0;  // made by callers
  uint64_t events = 0;
  uint64_t allocations = 0;
  uint64_t registrations = 0;  // of host memory, cuMemHostAlloc's included
  uint64_t copies_queued = 0;  // not ended yet; a batch is as many as it has pieces
  uint64_t copies_begun = 0;   // since the process began
  /// Host memory unregistered with copies queued, a stream destroyed with work queued, a context
  /// released with streams, events or memory left.
  uint64_t misuses = 0;
};

/// What a test asks of the simulation beside the driver's own functions. Thread-safe.
struct Control {
  Counts (*counts)();
  /// The n-th call of `function` (as exported, "cuEventRecord") from now on does nothing and gives
  /// `result`; 1 is the next one.
  void (*fail_call)(const char* function, uint64_t n, CUresult result);
  /// The n-th copy that begins on `device` from now on breaks its context instead.
  void (*fail_copy)(int device, uint64_t n);
  /// The n-th copy that begins on `device` from now on waits, and so do those after it, until
  /// let_copies_go().
  void (*hold_copy)(int device, uint64_t n);
  void (*let_copies_go)();
  /// Takes back what fail_call(), fail_copy() and hold_copy() asked for.
  void (*fail_nothing)();
};

/// The simulation exports a function of this type under this name; a real driver does not.
using ControlFunction = const Control*();
inline constexpr char kControlSymbol[] = "holdfast_simulated_driver_control";

}  // namespace holdfast::cuda::simulated
