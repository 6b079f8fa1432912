#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>

#include "base/process.h"

namespace holdfast::agent {

/// Measures for how much of the time the threads of processes wait for a processor. Used for few
/// processes, since each measurement reads a file of every thread. Thread-compatible.
class ProcessorWaits {
 public:
  /// Returns the waits of all threads of the process since the measurement before, in percent of
  /// that time, and 0 if they ran for a fifth of the time. Measures every two seconds. Returns 0 at
  /// first, and again after a pause of several seconds. `state`: that of /proc/PID/stat.
  uint32_t PercentOf(pid_t pid, char state, uint64_t now_ns);
  /// Returns the same for a period. `state`: at its end.
  static uint32_t WaitIn(uint64_t period_ns, const ProcessorTimes& before,
                         const ProcessorTimes& after, char state);

 private:
  struct Sample {
    uint64_t at_ns = 0;
    ProcessorTimes times;
    uint32_t percent = 0;
  };
  std::map<pid_t, Sample> samples_;
};

}  // namespace holdfast::agent
