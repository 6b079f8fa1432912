#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "base/status.h"

namespace holdfast {

/// Returns when the process was started, in ticks since boot. Returns 0 when there is no such
/// process, or when it has ended and its parent has not collected its exit status yet.
uint64_t StartTicksOf(pid_t pid);

/// The fields of /proc/<pid>/stat that callers need.
struct ProcessStat {
  char state = 0;  // R S D T t Z X …
  uint64_t start_ticks = 0;
};
/// Returns nothing when there is no such process.
std::optional<ProcessStat> StatOf(pid_t pid);

/// The time that the threads of a process had a processor, and that they were ready to run and
/// waited for one, in ns, summed. The kernel adds a wait once it has ended.
struct ProcessorTimes {
  uint64_t ran_ns = 0;
  uint64_t waited_ns = 0;
};
/// Returns nothing if the process has ended. Kernels that do not count these times show zeros.
std::optional<ProcessorTimes> ProcessorTimesOf(pid_t pid);

/// Identifies a process. The start time distinguishes it from a later process with the same pid.
struct ProcessName {
  pid_t pid = 0;
  uint64_t start_ticks = 0;
  bool operator==(const ProcessName&) const = default;
};

inline ProcessName NameProcess(pid_t pid) { return {pid, StartTicksOf(pid)}; }
bool IsAlive(const ProcessName& process);
/// Returns a descriptor that becomes readable when the process has ended. NotFound: it has ended
/// already.
Result<UniqueFd> PidFdOf(pid_t pid);
/// Sends a signal to that process and never to another one with the same pid. NotFound: the process
/// has ended.
Status SignalProcess(const ProcessName& process, int signal);

/// Returns the path of a program that is installed in the directory of the running one.
Result<std::string> SiblingProgram(std::string_view name);

}  // namespace holdfast
